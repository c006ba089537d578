"""Feeds damaged files to everything the package reads, each within bounds of memory and time.

    python -m tests.fuzz --count 20000 --seconds 600
    python -m tests.fuzz --kinds png,mp4 --count 500 --seed 7
    python -m tests.fuzz --replay out/fuzz/png-0-123.png

Reading a file must succeed, or fail with an `InputError` whose message is one sentence. Everything else is a finding:
another exception, a warning, a crash, too much memory or time. Findings are saved, and exit code 1 says that there are
some.
"""

import argparse
import gc
import itertools
import os
import sys
import time
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # read when libraries are imported; a process that forks must have one thread
os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")


def main() -> int:
    """Run the fuzzer; return the exit code."""
    import cv2

    import protoformer
    from tests.fuzz.corpus import Corpus, Replay
    from tests.fuzz.examination import Limits, examine
    from tests.fuzz.kinds import KINDS
    from tests.fuzz.run import Run

    cv2.setNumThreads(1)
    standard = Limits()
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, help="how many files to read; without it, as many as there is time for")
    parser.add_argument("--seconds", type=float, help="stop after so many seconds")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other files (default 0)")
    parser.add_argument("--kinds", help=f"names with commas between them, of: {', '.join(KINDS)}")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--output", type=Path, default=Path("out/fuzz"), help="folder for findings (default out/fuzz)")
    parser.add_argument("--replay", type=Path, help="read this one file, a finding, again")
    parser.add_argument(
        "--megabytes", type=int, default=standard.megabytes, help="memory for a file (default %(default)s)"
    )
    parser.add_argument(
        "--file-seconds", type=float, default=standard.seconds, help="processor time (default %(default)s)"
    )
    given = parser.parse_args()
    limits = Limits(megabytes=given.megabytes, seconds=given.file_seconds)

    if given.replay is not None:
        name = given.kinds or given.replay.name.partition("-")[0]
        if name not in KINDS or not given.replay.is_file():
            parser.error(f"{given.replay} is not a finding of a known kind; give a file, and its kind as --kinds NAME")
        replayed = Run(Replay(KINDS[name], given.replay), limits, workers=1).read([0])
        for outcome in replayed.outcomes.values():
            print(f"{outcome.status}: {outcome.where}\n{outcome.detail}")
        print(replayed.table())
        return int(bool(replayed.outcomes))

    names = given.kinds.split(",") if given.kinds else list(KINDS)
    unknown = [name for name in names if name not in KINDS]
    if unknown or (given.count is None and given.seconds is None) or given.workers < 1:
        parser.error(
            f"unknown kinds: {', '.join(unknown)}" if unknown else "give --count or --seconds, and some workers"
        )
    print(f"reading with {Path(protoformer.__file__).parent}")
    start = time.monotonic()
    corpus = Corpus([KINDS[name] for name in names], given.seed)
    gc.collect()
    gc.freeze()  # from here on a collection, which follows every file, takes no time
    for name in names:
        for seed in corpus.seeds[name]:
            outcome = examine(KINDS[name], seed, limits)
            if outcome.status != "ok":
                parser.error(f"a valid file of the kind {name} is not read: {outcome.detail}")
    run = Run(corpus, limits, workers=given.workers, folder=given.output)
    left = None if given.seconds is None else given.seconds - (time.monotonic() - start)
    result = run.read(itertools.count() if given.count is None else range(given.count), left)
    print(result.table())
    for cause, count in result.causes.most_common():
        print(f"{count:>6} x {cause}")
    print(
        f"{result.files} files of seed {given.seed} in {time.monotonic() - start:.0f} s, digest {result.digest}, "
        f"{sum(result.causes.values())} findings"
    )
    if given.count is not None and result.files < given.count:
        print(f"the time was up after {result.files} of {given.count} files")
    return int(bool(result.causes))


if __name__ == "__main__":
    sys.exit(main())
