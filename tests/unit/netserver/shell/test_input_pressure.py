"""Bounds of pending publishes and of receive memory, by members that only note what they are told."""

from __future__ import annotations

from netserver.limits import SHARE_MIN_BYTES
from netserver.shell.input_pressure import SHARE, TOTAL, PublishPressure, ReceiveBudget

MIB = 1 << 20


class Member:
    def __init__(self) -> None:
        self.charged = 0
        self.retained = 0
        self.holds: set[str] = set()
        self.reserved = 0
        self.granted = 0

    def hold(self, reason: str) -> None:
        self.holds.add(reason)

    def release(self, reason: str) -> None:
        self.holds.discard(reason)

    def grant(self) -> None:
        self.granted += 1

    def check_progress(self, now: float, window_s: float, least_bytes: int) -> None:
        raise AssertionError("nobody looks here")


def pressure(members: int, total: int = 64 * MIB, share: int = 8 * MIB) -> tuple[PublishPressure, list[Member]]:
    made = PublishPressure(total, share)
    found = [Member() for _ in range(members)]
    for member in found:
        made.join(member)
    return made, found


def test_above_its_share_a_member_is_held_and_at_half_released() -> None:
    made, (member,) = pressure(1)
    made.charge(member, 8 * MIB)
    assert not member.holds
    made.charge(member, 1)
    assert member.holds == {SHARE}
    made.discharge(member, 4 * MIB)
    assert member.holds == {SHARE}
    made.discharge(member, 1)
    assert not member.holds
    made.discharge(member, 4 * MIB)
    assert (made.total, made.active, member.charged) == (0, 0, 0)


def test_shares_shrink_with_the_number_of_publishers_so_that_half_the_total_stays_free() -> None:
    made, members = pressure(100)
    for member in members:
        while not member.holds:
            made.charge(member, 16 * 1024)
    assert made.total <= 40 * MIB
    assert not made.stopped
    quiet = Member()
    made.join(quiet)
    made.charge(quiet, 1000)
    assert not quiet.holds


def test_share_has_a_lower_bound() -> None:
    made, members = pressure(1000, total=MIB)
    for member in members:
        made.charge(member, 1)
    assert made.share_bytes() == SHARE_MIN_BYTES


def test_at_the_total_all_are_held_until_half_of_it_is_stored() -> None:
    made, (flood, quiet, third) = pressure(3)
    made.charge(flood, 64 * MIB)
    assert made.stopped
    assert quiet.holds == {TOTAL}
    late = Member()
    made.join(late)
    assert late.holds == {TOTAL}
    made.leave(third)
    made.discharge(flood, 32 * MIB - 1)
    assert quiet.holds == {TOTAL}
    made.discharge(flood, 1)
    assert not quiet.holds
    assert not late.holds
    assert flood.holds == {SHARE}
    assert third.holds == {TOTAL}  # gone: nobody tells it any more


def test_a_member_that_leaves_stays_charged() -> None:
    made, (member, _) = pressure(2)
    made.charge(member, MIB)
    made.leave(member)
    assert made.total == MIB
    made.discharge(member, MIB)
    assert (made.total, made.active) == (0, 0)


def test_nothing_is_nothing() -> None:
    made, (member,) = pressure(1)
    made.charge(member, 0)
    made.discharge(member, 0)
    assert made.active == 0


def test_tight_from_half_of_the_total() -> None:
    made, (member,) = pressure(1)
    made.charge(member, 32 * MIB)
    assert not made.tight
    made.charge(member, 1)
    assert made.tight


def test_what_finds_no_room_waits_but_for_one_favoured() -> None:
    budget = ReceiveBudget(10)
    first, second, third = Member(), Member(), Member()
    assert budget.reserve(first, 8)
    assert budget.reserve(second, 4)  # the favoured one
    assert budget.favoured is second
    assert not budget.reserve(third, 4)
    assert budget.reserve(second, 8)  # may even go on growing
    assert budget.reserved == 16
    budget.release(second)
    assert third.granted == 1  # 8 + 4 do not fit, but the one that waited longest is favoured now
    assert budget.favoured is third
    budget.leave(third)
    budget.leave(first)
    assert (budget.reserved, budget.kept) == (0, 0)
    assert not budget.waiting
    assert not budget.members
    assert not budget.tight


def test_room_goes_to_the_smallest_wish_first() -> None:
    budget = ReceiveBudget(10)
    holder, favoured, large, small = Member(), Member(), Member(), Member()
    assert budget.reserve(holder, 10)
    assert budget.reserve(favoured, 1)
    assert not budget.reserve(large, 8)
    assert not budget.reserve(small, 2)
    budget.release(holder)
    assert (small.granted, large.granted) == (1, 0)
    budget.release(small)
    assert large.granted == 1


def test_the_longest_waiting_becomes_favoured_when_nothing_fits() -> None:
    budget = ReceiveBudget(10)
    favoured, old, young = Member(), Member(), Member()
    assert budget.reserve(favoured, 12)
    assert not budget.reserve(old, 20)
    assert not budget.reserve(young, 15)
    budget.leave(favoured)
    assert (old.granted, young.granted) == (1, 0)
    assert budget.favoured is old
    budget.leave(old)
    assert young.granted == 1


def test_who_waits_may_leave() -> None:
    budget = ReceiveBudget(10)
    first, second, third = Member(), Member(), Member()
    assert budget.reserve(first, 10)
    assert budget.reserve(second, 1)
    assert not budget.reserve(third, 5)
    assert budget.tight
    budget.leave(third)
    budget.release(second)
    budget.release(second)
    budget.release(first)
    assert third.granted == 0
    assert not budget.tight


def test_what_is_kept_without_a_reservation_makes_it_tight() -> None:
    budget = ReceiveBudget(10)
    member = Member()
    budget.keep(member, 6)
    assert budget.tight
    budget.keep(member, 6)
    budget.keep(member, 5)
    assert not budget.tight
    assert budget.kept == member.retained == 5
