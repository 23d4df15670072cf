"""The generators of reasoning-gym, reviewed one by one at version 0.1.25."""

VERSION = "0.1.25"

_NAMES = """
    ab acre advanced_geometry aiw arc_1d arc_agi base_conversion basic_arithmetic bf
    binary_alternation binary_matrix bitwise_arithmetic boxnet caesar_cipher calendar_arithmetic
    chain_sum circuit_logic coin_flip color_cube_rotation complex_arithmetic count_bits
    count_primes countdown course_schedule cryptarithm decimal_arithmetic decimal_chain_sum dice
    emoji_mystery family_relationships figlet_font fraction_simplification futoshiki
    game_of_life game_of_life_halting gcd graph_color group_anagrams gsm_symbolic
    intermediate_integration isomorphic_strings jugs kakurasu knight_swap knights_knaves
    largest_island lcm leg_counting letter_counting letter_jumble list_functions mahjong_puzzle
    manipulate_matrix maze mini_sudoku modulo_grid n_queens needle_haystack number_filtering
    number_format number_sequence number_sorting palindrome_generation palindrome_partitioning
    path_star polynomial_equations polynomial_multiplication pool_matrix power_function
    prime_factorization products propositional_logic puzzle24 quantum_lock ransom_note rearc
    rectangle_count rotate_matrix rotten_oranges rubiks_cube rush_hour self_reference
    sentence_reordering shortest_path simple_equations simple_geometry simple_integration
    sokoban spell_backward spiral_matrix string_insertion string_manipulation string_splitting
    string_synthesis sudoku survo syllogism time_intervals tower_of_hanoi tsumego word_ladder
    word_sequence_reversal word_sorting zebra_puzzles
"""

GENERATORS = tuple(_NAMES.split())
"""Those that are adapted. A list, so that registering their ids does not import the library."""

EXCLUDED = {
    "codeio": "it runs thousands of published programs, and equal seeds give different tasks",
    "composite": "it is a mixture of the others: train on several environments instead",
}
"""Those that are not, and why."""

EXAMPLES = {
    "graph_color": "possible_answer",
    "propositional_logic": "example_answer",
    "rubiks_cube": "example_correct_answer",
}
"""Generators whose tasks have no reference answer, but an example of one under this metadata key."""

WITHOUT_ANSWER = ("boxnet", "rush_hour")
"""Generators whose tasks have neither; their environments name no solution."""

SMALL = ("acre", "gsm_symbolic", "list_functions", "word_ladder")
"""Generators that plan a whole data set when it is made: theirs has the library's default size."""
