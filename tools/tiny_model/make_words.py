"""Lists common English words: twice or more in lower case in the texts, and in a pronunciation dictionary.

  make_words.py DICT TEXT_DIR > words.txt

Only the single words are used, in random order, so that the model learns to listen instead of guessing.
The published model used the `fortunes` texts (without the offensive ones) and the CMU dictionary of PocketSphinx.
"""

import collections
import re
import sys
from pathlib import Path

SKIP = set(
    str.split("""fuck shit bitch cunt fag faggot whore slut rape raped raping cock dick piss damn bastard ass tits penis
vagina sex sexual sexy porn nazi kill killed drugs cocaine heroin masturbation orgasm prostitute""")
)


def main():
    dictionary = Path(sys.argv[1]).read_text(encoding="utf-8", errors="ignore")
    known = {line.split()[0] for line in dictionary.splitlines() if line.strip()}
    count = collections.Counter()
    for f in sorted(Path(sys.argv[2]).iterdir()):
        if f.is_file() and f.suffix not in (".dat", ".u8"):
            count.update(re.findall(r"(?<![\w'])[a-z]{2,14}(?![\w'])", f.read_text(encoding="utf-8", errors="ignore")))
    for w in sorted(count):
        if count[w] >= 2 and w in known and w not in SKIP and re.search("[aeiouy]", w):
            print(w)


if __name__ == "__main__":
    main()
