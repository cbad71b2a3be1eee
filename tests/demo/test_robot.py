"""How the robot drives: its tour, where it is sent, and that it stands still while disabled."""

from __future__ import annotations

import math
import struct
from itertools import pairwise

import pytest

from halley.demo.robot import HEIGHT_M, TOPICS, WIDTH_M, Robot

TICK_S = 0.02


def new_robot():
    return Robot()


def drove(robot, for_s):
    """Drive for a while; return all places where the robot was."""
    way = []
    for _ in range(int(for_s / TICK_S)):
        robot.step(TICK_S)
        way.append((robot.x_m, robot.y_m))
    return way


def test_it_makes_its_rounds_on_its_field():
    """In two minutes it makes a tour, stays on the field, keeps its top speed, and uses its battery."""
    robot = new_robot()
    full_v = robot.values()["/robot/battery"]
    way = drove(robot, 120)
    assert robot.values()["/robot/laps"] >= 1
    assert all(0 <= x_m <= WIDTH_M and 0 <= y_m <= HEIGHT_M for x_m, y_m in way)
    assert max(x_m for x_m, _ in way) - min(x_m for x_m, _ in way) > WIDTH_M / 2
    assert max(math.dist(*each) for each in pairwise(way)) < 3 * TICK_S
    assert 11 < robot.values()["/robot/battery"] < full_v


def test_it_goes_where_it_is_sent_rests_and_goes_on():
    """It resumes its tour after it has rested there for a while."""
    robot = new_robot()
    robot.obey("/robot/setpoint", [12.0, 3.0])
    way = drove(robot, 60)
    assert min(math.dist(each, (12, 3)) for each in way) < 0.5
    resting = [each for each in way if math.dist(each, (12, 3)) < 0.5]
    assert len(resting) * TICK_S > 4
    assert robot.destination is None
    assert math.dist(way[-1], (12, 3)) > 1


@pytest.mark.parametrize("value", [[], [1.0], [1.0, 2.0, 3.0], [math.nan, 1.0], [1.0, math.inf], "12, 3", None])
def test_a_setpoint_that_is_no_place_is_ignored(value):
    """Setpoints can be any doubles: a console can set them."""
    robot = new_robot()
    robot.obey("/robot/setpoint", value)
    assert robot.destination is None


def test_a_place_off_the_field_is_taken_for_the_nearest_on_it():
    """It drives as near to the place as it can."""
    robot = new_robot()
    robot.obey("/robot/setpoint", [99.0, -5.0])
    assert robot.destination == (WIDTH_M, 0.0)
    assert min(math.dist(each, (WIDTH_M, 0.0)) for each in drove(robot, 60)) < 0.5


def test_disabled_it_stands_still_and_goes_on_when_it_may():
    """Values that are not a mode are ignored."""
    robot = new_robot()
    drove(robot, 3)
    robot.obey("/robot/mode", "disabled")
    drove(robot, 2)
    assert len({*drove(robot, 5)}) == 1
    robot.obey("/robot/mode", "fly")
    assert robot.mode == "disabled"
    robot.obey("/robot/mode", "auto")
    assert len({*drove(robot, 5)}) > 100


def test_it_sees_the_walls():
    """Its lidar measures the distances to the four walls of the field."""
    robot = new_robot()
    drove(robot, 10)
    left_m, right_m, below_m, above_m = (mm / 1_000 for mm in struct.unpack("<4H", robot.values()["/robot/lidar"]))
    assert (left_m + right_m, below_m + above_m) == pytest.approx((WIDTH_M, HEIGHT_M), abs=0.002)
    assert (left_m, below_m) == pytest.approx((robot.x_m, robot.y_m), abs=0.001)


def test_every_kind_of_topic_is_there():
    """The robot's topics have every type, so that the console shows them all."""
    assert {kind for kind, _ in TOPICS.values()} == {"double", "double[]", "boolean", "int", "string", "raw"}
