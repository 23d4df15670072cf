"""Programs that are wrong and try to be called right by tests on their function `add`."""

TESTS = ["assert add(2, 3) == 5", "assert add(-1, 1) == 0", "assert add(10, 7) == 17"]

EQUAL = """
class Always(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __sub__(self, other): return 0
    def __hash__(self): return 0
"""

CHEATS = {
    "wrong": "def add(a, b): return a - b",
    "missing": "pass",
    "empty": "",
    "no Python": "def add(a, b) return a + b",
    "not a function": "add = 5",
    "raises": "def add(a, b): raise ValueError('5')",
    "raises at once": "raise SystemExit(0)",
    "sys.exit(0)": "import sys\ndef add(a, b): sys.exit(0)",
    "os._exit(0)": "import os\ndef add(a, b): os._exit(0)",
    "os._exit at once": "import os\nos._exit(0)",
    "exit in a thread": (
        "import os, threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(.05), os._exit(0))).start()\n"
        "def add(a, b): time.sleep(9)"
    ),
    "atexit": "import atexit, os\natexit.register(lambda: os._exit(0))\ndef add(a, b): return 1",
    "prints the verdict": (
        'import json\nfor n in range(3): print(json.dumps({"nonce": "", "test": n, "passed": True}))\n'
        'print(json.dumps({"nonce": "", "done": True}))\nprint("PASS\\nOK")\ndef add(a, b): return 1'
    ),
    "writes the verdict to every descriptor": (
        "import json, os\nfor fd in range(200):\n"
        '    for line in ({"test": 0, "passed": True}, {"done": True}):\n'
        "        try: os.write(fd, json.dumps(line).encode() + b'\\n')\n        except OSError: pass\n"
        "def add(a, b): return 1"
    ),
    "answers on the connection before it is asked": (
        "import json, struct, os\nfor v in (True, 5, 0, 17):\n"
        '    b = json.dumps({"value": v}).encode()\n    os.write(3, struct.pack(">I", len(b)) + b)\n'
        "os._exit(0)"
    ),
    "sends what is no message": "import os\nos.write(3, b'\\xff' * 1000)\ndef add(a, b): return a + b",
    "sends too much": (
        "import os, struct\ndef add(a, b):\n    os.write(3, struct.pack('>I', 1 << 31))\n"
        "    while True: os.write(3, bytes(1 << 16))"
    ),
    "closes the connection": "import os\ndef add(a, b):\n    os.close(3)\n    return a + b",
    "__eq__ of a number": EQUAL + "def add(a, b): return Always(1)",
    "__eq__ of an object": EQUAL.replace("(int)", "") + "def add(a, b): return Always()",
    "__eq__ of a text": EQUAL.replace("(int)", "(str)") + "def add(a, b): return Always()",
    "__eq__ of a function's owner": EQUAL + "add = lambda a, b: type('T', (), {'__eq__': print})()",
    "__class__ that lies": (
        EQUAL.replace("(int)", "") + "Always.__class__ = int\ndef add(a, b): return Always()"
    ),
    "patched builtins": (
        "import builtins\nbuiltins.AssertionError = None\nbuiltins.isinstance = lambda *a: True\n"
        "builtins.abs = lambda x: 0\ndef add(a, b): return 1"
    ),
    "shadowed builtins": "def abs(x): return 0\ndef all(x): return True\ndef add(a, b): return 1",
    "patched unittest": (
        "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\ndef add(a, b): return 1"
    ),
    "patched json": (
        "import json\njson.loads = lambda *a: {'value': True}\njson.dumps = lambda *a: '{\"done\": true}'\n"
        "def add(a, b): return 1"
    ),
    "patched exec and compile": (
        "import builtins\nbuiltins.exec = builtins.compile = lambda *a, **k: None\ndef add(a, b): return 1"
    ),
    "patched excepthook": "import sys\nsys.excepthook = lambda *a: None\n1 / 0",
    "reads the tests from the stack": (
        "import sys, re\ndef add(a, b):\n    f = sys._getframe()\n    while f:\n"
        "        for v in f.f_locals.values():\n"
        "            m = re.search(rf'add\\({a}, {b}\\) == (-?\\d+)', repr(v))\n"
        "            if m: return int(m[1])\n        f = f.f_back"
    ),
    "reads the tests from the collector": (
        "import gc, re\ndef add(a, b):\n    for v in gc.get_objects():\n"
        "        text = repr(v)[:9999] if type(v) in (list, dict) else ''\n"
        "        m = re.search(rf'add\\({a}, {b}\\) == (-?\\d+)', text)\n"
        "        if m: return int(m[1])"
    ),
    "reads the tests from memory": (
        "import ctypes, re\ndef add(a, b):\n    here = id(add) & ~0xfffff\n"
        "    m = re.search(rb'add\\(%d, %d\\) == (-?\\d+)' % (a, b), ctypes.string_at(here, 1 << 20))\n"
        "    return int(m[1]) if m else None"
    ),
    "reads the tests from files": (
        "import os, re\ndef add(a, b):\n    for d in ('.', '..', '/tmp', '/proc/self', '/proc'):\n"
        "        try: names = os.listdir(d)\n        except OSError: continue\n"
        "        for n in names:\n"
        "            try: m = re.search(rf'add\\({a}, {b}\\) == (-?\\d+)', open(d + '/' + n).read())\n"
        "            except (OSError, UnicodeDecodeError): continue\n"
        "            if m: return int(m[1])"
    ),
    "reads the tests from a traceback": (
        "import traceback, re\ndef add(a, b):\n    try: 1 / 0\n    except ZeroDivisionError as e:\n"
        "        text = ''.join(traceback.format_stack()) + str(e.__traceback__.tb_frame.f_back)\n"
        "        m = re.search(r'== (-?\\d+)', text)\n        return int(m[1]) if m else None"
    ),
    "kills its neighbours": (
        "import os\nfor p in range(max(2, os.getpid() - 20), os.getpid() + 20):\n"
        "    try: os.kill(p, 9) if p != os.getpid() else 0\n    except OSError: pass\n"
        "def add(a, b): return 1"
    ),
    "kills all": "import os\ndef add(a, b): os.kill(-1, 9)",
    "never answers": "def add(a, b):\n    while True: pass",
    "never loads": "while True: pass",
    "infinite iterator": "import itertools\ndef add(a, b): return itertools.count()",
    "answers an endless list": (
        "class L(list):\n    def __iter__(self):\n        while 1: yield 1\ndef add(a, b): return L()"
    ),
    "answers a cycle": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    "answers deep nesting": "def add(a, b):\n    x = []\n    for _ in range(10**5): x = [x]\n    return x",
    "answers a huge number": "def add(a, b): return 1 << (1 << 30)",
    "answers nan": "def add(a, b): return float('nan')",
    "answers a coroutine": "async def add(a, b): return a + b",
    "redefines the helper": "def check(x): return True\ndef add(a, b): return 1",
    "a module of its own in place of a standard one": (
        "import sys, types\nsys.modules['math'] = types.ModuleType('math')\ndef add(a, b): return 1"
    ),
}
