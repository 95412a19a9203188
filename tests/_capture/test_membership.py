import pytest

from segue._capture.membership import are_strangers, match_groups, one_sided_findings, order_findings


def test_groups_are_matched_by_their_members():
    recorded = [("a", "b"), ("c",), (), ()]
    assert match_groups(recorded, [["c"], ["b", "a"], [], []]) == [1, 0, 2, 3]
    assert match_groups(recorded, [["a"], ["b", "c"], [], []]) is None
    assert match_groups(recorded, [["a", "b", "c"], [], []]) is None


@pytest.mark.parametrize("lying", [[("a", "a")], [("a",), ("a",)]], ids=["in one group", "in two"])
def test_a_member_listed_twice_is_another_partition(lying):
    assert match_groups(lying, [["a"]]) is None
    assert match_groups([("a",)], lying) is None


@pytest.mark.parametrize(
    ("recorded", "live", "places"),
    [
        ([("a",)], [["a", "new"]], [0]),
        ([("a", "gone")], [["a"]], [0]),
        ([("a",)], [["a"], ["new"]], [0, None]),
        ([("a",)], [["new"], ["a"]], [None, 0]),
        ([("gone",), ("a",)], [["a"]], [1]),
        ([("gone",), ("a",)], [["new"], ["a"]], [None, 1]),
        ([("gone",), ("a",)], [[], ["a"]], [0, 1]),
        ([(), ("a",)], [["new"], ["a"]], [0, 1]),
        ([(), ("a",)], [["new"], [], ["a"]], [None, 0, 1]),
        ([("a",)], [[], ["a"]], None),
        ([(), ("a",)], [["a"]], None),
        ([(), ("gone",)], [[]], [0]),
    ],
)
def test_what_only_one_side_has_does_not_decide(recorded, live, places):
    assert match_groups(recorded, live) == places


def codes(findings):
    return [(finding.code, finding.admissible) for finding in findings]


def test_what_is_told_of_a_module_is_not_told_again():
    explained = frozenset({"gone", "new"})
    pair = [("a", "gone")], [["a"], ["new"]]
    assert codes(one_sided_findings(*pair, explained, "optimizer.o", admissible=True)) == []
    told = codes(one_sided_findings(*pair, frozenset(), "optimizer.o", admissible=True))
    assert told == [
        ("optimizer.o.groups", True),
        ("optimizer.o.missing.gone", True),
        ("optimizer.o.extra.new", True),
    ]


def test_where_the_order_is_the_state_none_may_come_or_go():
    explained = frozenset({"gone", "new"})
    told = codes(
        one_sided_findings([("a", "gone")], [["a", "new"]], explained, "optimizer.o", admissible=False)
    )
    assert told == [("optimizer.o.missing.gone", False), ("optimizer.o.extra.new", False)]


def test_the_order_of_what_both_have_is_compared():
    assert (
        codes(order_findings([("a", "gone", "b")], [["new", "a", "b"]], [0], "optimizer.o", admissible=True))
        == []
    )
    [finding] = order_findings([("a", "gone", "b")], [["b", "new", "a"]], [0], "optimizer.o", admissible=True)
    assert (finding.code, finding.expected, finding.found) == ("optimizer.o.order", ["a", "b"], ["b", "a"])
    [finding] = order_findings(
        [("a",), ("b",)], [["b"], ["new"], ["a"]], [1, None, 0], "optimizer.o", admissible=True
    )
    assert (finding.code, finding.expected, finding.found) == ("optimizer.o.group_order", [0, 1], [1, 0])


def test_an_optimizer_of_other_parameters_has_only_taken_a_name():
    assert are_strangers([("a",)], [["b"]], frozenset())
    assert not are_strangers([("a",)], [["b"]], frozenset({"a", "b"}))
    assert not are_strangers([("a",)], [["a", "b"]], frozenset())
    assert not are_strangers([("a",)], [[]], frozenset())
