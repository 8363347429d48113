#!/bin/sh
# Put the SHA-256 of memhook.py into install.sh. To be run after each change of memhook.py that is to be released; tests/test_install_sh.py compares.
set -eu
cd "$(dirname "$0")/.."
python3 - <<'END'
import hashlib, re
digest = hashlib.sha256(open("memhook.py", "rb").read()).hexdigest()
text = open("install.sh", encoding="utf-8").read()
text = re.sub(r"(?m)^(SHA256=\$\{MEMHOOK_SHA256-)[0-9a-f]{64}\}", r"\g<1>%s}" % digest, text)
open("install.sh", "w", encoding="utf-8").write(text)
print(digest)
END
