"""How far a query is on its way to another number of workers, as its reports tell it. Pure."""

from __future__ import annotations

from typing import Any


def is_rescaled(progress: dict[str, Any], workers: int) -> bool:
    """Whether so many workers run its tasks, or, of none, whether it is suspended."""
    if "rescaling" in progress or (not workers and "suspended" not in progress):
        return False  # the workers are there, and still run the tasks of before
    is_running = not workers or _running(progress) == len(progress["tasks"])
    return bool(progress["workersWanted"] == progress["workers"] == workers and is_running)


def way_so_far(progress: dict[str, Any]) -> tuple[object, ...]:
    """What is new while it comes closer; workers that go and come again bring nothing new. What
    tasks commit counts only while they are to end: that workers are missing, for which Spark has no
    cores, is no progress, however much the tasks do."""
    rescaling = progress.get("rescaling")
    tasks = progress["tasks"]
    layout = progress.get("layout", {}).get("version", 0)
    done = [one.get("committed_position") for one in tasks.values()] if rescaling else None
    return str(rescaling), progress["workers"], _running(progress), layout, str(done)


def rescaling_words(progress: dict[str, Any], workers: int) -> str:
    """What it waits for."""
    rescaling, there = progress.get("rescaling"), progress["workers"]
    if not workers:
        return f"its tasks commit what they have; workers that are still to leave: {there}"
    waiting = progress.get("cores", {}).get("waiting")
    if there < workers:
        return f"{there} of {workers} workers are there{f': {waiting}' if waiting else ''}"
    if rescaling is None:
        text = f"{_running(progress)} of {len(progress['tasks'])} tasks run"
        leaving = there - workers
        return f"{text}; workers that are still to leave: {leaving}" if leaving else text
    ready, copied = rescaling.get("ready", 0), rescaling.get("copied", 0)
    if ready < copied:
        rows = rescaling.get("rows")  # a driver of before does not say
        size = "" if rows is None else f", with {rows:,} rows"
        return f"copies of the state are made: {ready} of {copied} are ready{size}"
    return "its tasks read what stood in the log, and end there"


def _running(progress: dict[str, Any]) -> int:
    return sum(bool(task.get("is_running")) for task in progress["tasks"].values())
