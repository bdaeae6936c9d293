"""A ROS 2 node that finds objects in a camera's images and publishes them.

    python3 ros2_detector.py --ros-args -p bundle:=yolo.edge -r image:=/camera/image_raw

Takes ``sensor_msgs/Image`` (rgb8 or bgr8) on ``image``, gives ``vision_msgs/Detection2DArray`` on
``detections`` with the image's header, so that they go together. With
``-p track:=true`` the number of an object is its ``id``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import rclpy
from rclpy.node import Node
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2D, Detection2DArray, ObjectHypothesisWithPose

from edgeinfer.results import Detection
from edgeinfer.tasks import Detector
from edgeinfer.tracking import Tracker

DEPTH = 1
"""Images that wait: an old one is of no use."""


class DetectorNode(Node):  # type: ignore[misc]
    """Finds objects in each image that comes while the one before is done."""

    def __init__(self) -> None:
        super().__init__("edgeinfer_detector")
        self.declare_parameter("bundle", "model.edge")
        self.declare_parameter("track", False)
        self.detector = Detector(self.get_parameter("bundle").value)
        self.tracker = Tracker() if self.get_parameter("track").value else None
        self.publisher = self.create_publisher(Detection2DArray, "detections", DEPTH)
        self.create_subscription(Image, "image", self.look, DEPTH)

    def look(self, image: Any) -> None:
        """Publish what an image shows."""
        if image.encoding not in ("rgb8", "bgr8"):
            self.get_logger().error(f"expected rgb8 or bgr8, received {image.encoding}")
            return
        found = self.detector.detect(pixels(image))
        found = found if self.tracker is None else self.tracker.update(found)
        answer = Detection2DArray(header=image.header)
        answer.detections = [message(detection, image.header) for detection in found]
        self.publisher.publish(answer)


def pixels(image: Any) -> np.ndarray:
    """Return an image as (height, width, 3) in RGB; rows may be longer than they need."""
    rows = np.frombuffer(image.data, np.uint8).reshape(image.height, image.step)
    picture = rows[:, : 3 * image.width].reshape(image.height, image.width, 3)
    return picture if image.encoding == "rgb8" else np.ascontiguousarray(picture[..., ::-1])


def message(found: Detection, header: Any) -> Any:
    """Return an object as vision_msgs has it: middle and size."""
    answer = Detection2D(header=header)
    left, top, right, bottom = found.box
    answer.bbox.center.position.x, answer.bbox.center.position.y = (
        (left + right) / 2,
        (top + bottom) / 2,
    )
    answer.bbox.size_x, answer.bbox.size_y = right - left, bottom - top
    answer.id = "" if found.track is None else str(found.track)
    guess = ObjectHypothesisWithPose()
    guess.hypothesis.class_id, guess.hypothesis.score = found.label, found.score
    answer.results = [guess]
    return answer


def main() -> None:
    """Look until it is stopped."""
    rclpy.init()
    node = DetectorNode()
    try:
        rclpy.spin(node)
    finally:
        node.detector.close()
        node.destroy_node()


if __name__ == "__main__":
    main()
