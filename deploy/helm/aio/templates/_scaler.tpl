{{- /* (root, name, component, kind, scaling): what scales a workload, by the Kubernetes autoscaler or by KEDA. Both follow the
same signals and the same rules: up at once, down slowly and one at a time, since an ending pod drains for a while. */ -}}
{{- define "aio.scaler" -}}
{{- $root := .root }}
{{- $pods := printf "namespace=\"%s\",app_kubernetes_io_component=\"%s\"" $root.Release.Namespace .component }}
{{- $behavior := dict "scaleUp" (dict "stabilizationWindowSeconds" 0 "policies" (list (dict "type" "Percent" "value" 100 "periodSeconds" 60) (dict "type" "Pods" "value" 2 "periodSeconds" 60)) "selectPolicy" "Max") "scaleDown" (dict "stabilizationWindowSeconds" (int .scaling.calmSeconds) "policies" (list (dict "type" "Pods" "value" 1 "periodSeconds" 60))) }}
{{- if eq .scaling.by "keda" }}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: {{ .name }}
  labels:
    {{- include "aio.labels" $root | nindent 4 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: {{ .kind }}
    name: {{ .name }}
  minReplicaCount: {{ .scaling.min }}
  maxReplicaCount: {{ .scaling.max }}
  pollingInterval: 15
  # While Prometheus is down: keep the current number, not the minimum.
  fallback:
    failureThreshold: 4
    replicas: {{ .scaling.min }}
    behavior: currentReplicasIfHigher
  advanced:
    horizontalPodAutoscalerConfig:
      behavior:
        {{- toYaml $behavior | nindent 8 }}
  triggers:
    {{- with .scaling.cpuPercent }}
    - type: cpu
      metricType: Utilization
      metadata:
        value: {{ . | quote }}
    {{- end }}
    {{- range .scaling.signals }}
    {{- if .url }}
    - type: metrics-api
      name: {{ .name }}
      metricType: {{ .type }}
      metadata:
        url: {{ tpl .url $root | quote }}
        valueLocation: {{ .valueLocation | quote }}
        targetValue: {{ .target | quote }}
        {{- with .authMode }}
        authMode: {{ . | quote }}
        {{- end }}
      {{- with .authentication }}
      authenticationRef:
        name: {{ . }}
      {{- end }}
    {{- else }}
    - type: prometheus
      name: {{ .name }}
      metricType: {{ .type }}
      metadata:
        serverAddress: {{ $root.Values.monitoring.prometheus | quote }}
        query: {{ .query | replace "PODS" $pods | quote }}
        threshold: {{ .target | quote }}
    {{- end }}
    {{- end }}
{{- else }}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ .name }}
  labels:
    {{- include "aio.labels" $root | nindent 4 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: {{ .kind }}
    name: {{ .name }}
  minReplicas: {{ .scaling.min }}
  maxReplicas: {{ .scaling.max }}
  behavior:
    {{- toYaml $behavior | nindent 4 }}
  metrics:
    {{- with .scaling.cpuPercent }}
    - type: Resource
      resource:
        name: cpu
        target:
          type: Utilization
          averageUtilization: {{ . }}
    {{- end }}
    {{- $component := .component }}
    {{- range .scaling.signals }}
    {{- if .url }}{{ fail (printf "signal %s: a url is read by KEDA alone; set autoscaling.by to keda" .name) }}{{ end }}
    - type: External
      external:
        metric:
          name: {{ .name }}
          selector:
            matchLabels:
              app_kubernetes_io_component: {{ $component }}
        target:
          type: {{ .type }}
          {{ eq .type "Value" | ternary "value" "averageValue" }}: {{ .target | quote }}
    {{- end }}
{{- end }}
{{- end }}
