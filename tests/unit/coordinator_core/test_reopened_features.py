"""Loops, compensations and pauses meet a person who has work done again."""

from services.coordinator.core.commands import MarkFixed, Requeue
from services.coordinator.core.decision import RefusalReason
from services.coordinator.core.summary import summary
from services.coordinator.core.values import WorkKey
from tests.support.story import Story, begun, chain, node, started

BODY = {"module": "noop@1"}


def failed_loop(**document):
    """The second of three items has failed, and the loop with it."""
    loop = node("l", "for_each@1", config={"items": ["a", "b", "c"], "body": BODY})
    story = started(loop, node("after"), edges=chain("l", "after"), **document)
    story.assign()
    story.succeed("l", item=1)
    story.fail("l", item=2)
    story.succeed("l", item=3)
    return story


def test_a_failed_item_makes_its_loop_the_dead_letter():
    story = failed_loop()
    assert story.state == "FAILED"
    (letter,) = story.execution.dead_letters.values()
    assert letter.run.work.key == WorkKey("l")


def test_a_requeued_loop_does_its_items_again():
    story = failed_loop()
    (number,) = story.execution.dead_letters
    story.give(Requeue, number)
    assert [work.key for work in story.execution.ready] == [WorkKey("l", item, 2) for item in (1, 2, 3)]
    story.assign()
    for item in (1, 2, 3):
        story.succeed("l", b'"%d"' % item, item=item)
    assert story.work("l").output == b'["1","2","3"]'
    story.do("after")
    assert story.state == "SUCCESS"


def test_a_loop_that_is_held_gets_its_output_from_a_person():
    story = failed_loop(onFailure="HOLD")
    assert story.state == "WAITING"
    (number,) = story.execution.dead_letters
    story.give(MarkFixed, number, b'["a","b","c"]')
    story.do("after")
    assert (story.state, summary(story.execution).succeeded) == ("SUCCESS", ("l", "after"))


def compensated():
    """The compensation of `a` has failed too."""
    a = node("a", compensate={"module": "noop@1"})
    story = begun(a, node("bad"), edges=chain("a", "bad"))
    story.succeed("a")
    story.assign("bad")
    story.fail("bad")
    undoing = next(iter(story.execution.ready))
    story.assign(undoing.node.id)
    story.fail(undoing.node.id)
    return story, undoing.node.id


def test_an_execution_that_was_undone_is_retried_from_its_failed_node():
    story, _ = compensated()
    story.retry()
    assert story.ready == ["bad"], "what could not be undone is still done"
    story.do("bad")
    assert story.state == "SUCCESS"


def test_work_is_done_again_in_a_paused_execution_once_it_is_resumed():
    story = Story([node("bad"), node("slow")])
    story.start()
    story.assign()
    story.fail("bad")
    story.pause()
    story.retry()
    assert (story.state, story.ready) == ("PAUSED", ["bad"])
    assert story.assign("bad").refusal.reason is RefusalReason.EXECUTION_PAUSED
    story.resume()
    story.do("bad")
    story.succeed("slow")
    assert story.state == "SUCCESS"
