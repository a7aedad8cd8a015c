"""Schemas of custom resources that no package contains: the fields used by the chart, from published references.

InferencePool: https://gateway-api-inference-extension.sigs.k8s.io/reference/spec; RayService:
https://ray-project.github.io/kuberay/reference/api. Pods inside a RayService are checked by Kubernetes' own schema.
"""

from typing import Any

Schema = dict[str, Any]


def _closed(required: list[str], **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 253}
_LABELS: Schema = {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_PARAMETERS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
_POD: Schema = {"type": "object", "required": ["spec"]}

INFERENCE_POOL = _closed(
    ["selector", "targetPorts", "endpointPickerRef"],
    selector=_closed(["matchLabels"], matchLabels=_LABELS),
    targetPorts={"type": "array", "minItems": 1, "maxItems": 8, "items": _closed(["number"], number=_PORT)},
    appProtocol={"enum": ["http", "kubernetes.io/h2c"]},
    endpointPickerRef=_closed(
        ["name"],
        group={"type": "string"},
        kind=_NAME,
        name=_NAME,
        port=_closed(["number"], number=_PORT),
        failureMode={"enum": ["FailOpen", "FailClose"]},
    ),
)

RAY_CLUSTER = _closed(
    ["headGroupSpec"],
    rayVersion={"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
    enableInTreeAutoscaling={"type": "boolean"},
    headGroupSpec=_closed(["template"], rayStartParams=_PARAMETERS, template=_POD),
    workerGroupSpecs={
        "type": "array",
        "items": _closed(
            ["groupName", "template"],
            groupName=_NAME,
            replicas=_COUNT,
            minReplicas=_COUNT,
            maxReplicas=_COUNT,
            rayStartParams=_PARAMETERS,
            template=_POD,
        ),
    },
)

RAY_SERVICE = _closed(
    ["serveConfigV2", "rayClusterConfig"], serveConfigV2={"type": "string"}, rayClusterConfig=RAY_CLUSTER
)
