"""What every test starts from."""

import signal

# A shell's background job is started with Ctrl-C ignored, and what it starts inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
