"""Further defects, in what one client may cost the others; see `tests.mutant_list`."""

from __future__ import annotations

from tests.mutant_list import Mutant

SERVER_MUTANTS = (
    Mutant(
        "let one maker use up the room for topics",
        "engine/state/catalog.py",
        "            self._shares.check(maker, partition_count, topics_left, partitions_left)\n",
        "            pass\n",
        "tests/unit/netserver/test_shares.py -k requests",
    ),
    Mutant(
        "never forget what a maker took",
        "engine/state/shares.py",
        "        kept = 0.5 ** ((self._clock_s() - at) / MAKER_HALF_LIFE_S)\n",
        "        kept = 1.0\n",
        "tests/unit/netserver/test_shares.py -k with_time",
    ),
    Mutant(
        "take any number of values in a JSON body",
        "netserver/admin/bodies.py",
        "        left -= 1\n",
        "",
        "tests/unit/netserver/admin/test_admin_slices.py -k bounded_number",
    ),
    Mutant(
        "go through all subscriptions in one piece",
        "netserver/admin/metrics.py",
        "async for cursor in sliced(self._log.slices, self._log.cursors.loaded()):",
        "for cursor in self._log.cursors.loaded():",
        "tests/unit/netserver/admin/test_metrics.py -k slices",
    ),
    Mutant(
        "unpack request bodies",
        "netserver/admin/http.py",
        "            auto_decompress=False,\n",
        "",
        "tests/unit/netserver/admin/test_admin_http.py -k unpacked",
    ),
    Mutant(
        "let held connections keep their places",
        "netserver/admin/http.py",
        "            self._give_way(next(iter(self._idle)))\n",
        "            pass\n",
        "tests/unit/netserver/admin/test_admin_http.py -k gives_way",
    ),
    Mutant(
        "send history by its bytes alone, whatever time it takes",
        "netserver/figg/session.py",
        "            if left_bytes <= 0 or is_late:\n",
        "            if left_bytes <= 0:\n",
        "tests/unit/netserver/figg/test_figg_session.py -k turns_that_have_time",
    ),
    Mutant(
        "take a state that cannot be read for a defect",
        "engine/state/environment.py",
        """            except lmdb.Error as error:
                raise DataDirectoryError(f"cannot read {self.path}: {error}") from error
            with transaction:
                yield transaction, self._databases

    def write""",
        """            except lmdb.Error as error:
                raise
            with transaction:
                yield transaction, self._databases

    def write""",
        "tests/unit/test_staging.py -k cannot_be_written",
    ),
)
