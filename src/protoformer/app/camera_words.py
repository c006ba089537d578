"""What a person is told of the camera that metres were computed for."""

from protoformer.inference.cameras import ASSUMED_FOV


def told_camera(source: str, focal: float) -> str:
    """Who says what the camera is, in words."""
    who = {
        "given": "as you said",
        "exif": "noted in the file",
        "assumed": f"assumed, {ASSUMED_FOV:g} degrees along the longer side: metres are as good as this guess",
    }
    return f"focal length {focal:.1f} px ({who[source]})"
