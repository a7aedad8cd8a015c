{{- define "aio.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "aio.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.podSecurity }}
{{- if not (kindIs "invalid" .user) }}
runAsUser: {{ int64 .user }}
{{- end }}
{{- if not (kindIs "invalid" .group) }}
runAsGroup: {{ int64 .group }}
{{- end }}
{{- if not (kindIs "invalid" .fsGroup) }}
fsGroup: {{ int64 .fsGroup }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "aio.mounts" -}}
- name: data
  mountPath: /var/lib/aio
- name: cache
  mountPath: /var/cache/aio
- name: run
  mountPath: /run/aio
- name: tmp
  mountPath: /tmp
{{- if .Values.catalogs }}
- name: catalogs
  mountPath: /etc/aio/catalogs
  readOnly: true
{{- end }}
{{- if .Values.weights.claim }}
- name: weights
  mountPath: {{ .Values.weights.path }}
  readOnly: true
{{- end }}
{{- end }}

{{- /* (root, data): what aio.mounts mounts. `data` names a claim, or is empty: the node's disk, for the pod's lifetime. */ -}}
{{- define "aio.volumes" -}}
- name: data
  {{- if .data }}
  persistentVolumeClaim:
    claimName: {{ .data }}
  {{- else }}
  emptyDir: {}
  {{- end }}
- name: cache
  emptyDir:
    sizeLimit: {{ .root.Values.cacheSize }}
- name: run
  emptyDir:
    medium: Memory
    sizeLimit: 16Mi
- name: tmp
  emptyDir:
    sizeLimit: {{ .root.Values.tmpSize }}
{{- if .root.Values.catalogs }}
- name: catalogs
  configMap:
    name: {{ include "aio.fullname" .root }}-catalogs
{{- end }}
{{- with .root.Values.weights.claim }}
- name: weights
  persistentVolumeClaim:
    claimName: {{ . }}
    readOnly: true
{{- end }}
{{- end }}

{{- define "aio.environment" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- /* The Secret of the values, or the one that the release makes (secret.yaml). */ -}}
{{- define "aio.secretName" -}}
{{- .Values.secret.name | default (printf "%s-keys" (include "aio.fullname" .)) -}}
{{- end }}

{{- /* Variables of gateways and workers that come from the Secret, by name. */ -}}
{{- define "aio.secrets" -}}
{{- $made := get .Values.settings "AIO_INSECURE" | toString | eq "true" | ternary (list "AIO_ADMIN_KEYS") (list "AIO_API_KEYS" "AIO_ADMIN_KEYS") }}
{{- range .Values.secret.name | empty | ternary $made .Values.secret.keys }}
{{ . }}: {{ . }}
{{- end }}
{{- end }}

{{- define "aio.clusterSettings" -}}
{{- if .Values.ray.enabled }}
AIO_CLUSTER: ray://{{ include "aio.fullname" . }}-ray-head-svc:10001
AIO_CORE_TLS: {{ .Values.ray.tls.enabled | ternary "/etc/aio/core-tls" "off" | quote }}
{{- end }}
{{- end }}

{{- /* (root, component, version, spec, role, settings, secrets, data): the pod of a gateway, a pool or a batch worker: an HTTP
container, and a sidecar for each core, which starts before it and ends after it. */ -}}
{{- define "aio.pod" -}}
{{- $root := .root }}
{{- $spec := .spec }}
{{- $catalog := include "aio.catalog" (dict "root" $root "name" $spec.catalog) }}
{{- $grace := add $root.Values.drain.endpointSeconds $root.Values.drain.seconds $root.Values.drain.marginSeconds }}
metadata:
  labels:
    {{- include "aio.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
    {{- with .version }}
    aio/version: {{ . }}
    {{- end }}
  annotations:
    checksum/catalogs: {{ include (print $root.Template.BasePath "/catalogs.yaml") $root | sha256sum }}
    {{- with $spec.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "aio.fullname" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  securityContext:
    {{- include "aio.podSecurity" $root | nindent 4 }}
  terminationGracePeriodSeconds: {{ $grace }}
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $spec.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $spec.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with $spec.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $spec.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  topologySpreadConstraints:
    {{- $selector := include "aio.selector" (dict "root" $root "component" .component) }}
    {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- $selector | nindent 10 }}
    {{- end }}
  {{- with $spec.cores }}
  initContainers:
    {{- range . }}
    - name: core-{{ .group }}
      image: {{ include "aio.image" (dict "root" $root "image" .image) }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      restartPolicy: Always
      args: [serve, --role, core, --group, {{ .group }}]
      env:
        - name: AIO_CATALOG
          value: {{ $catalog }}
        {{- include "aio.environment" $root.Values.settings | nindent 8 }}
      securityContext:
        {{- include "aio.containerSecurity" $root | nindent 8 }}
      # It listens before it has loaded; the gateway's readiness says when it can be used.
      startupProbe:
        exec:
          command:
            - python
            - -c
            - import socket; s = socket.socket(socket.AF_UNIX); s.settimeout(2); s.connect('/run/aio/{{ eq .group "cpu" | ternary "core" (printf "core.%s" .group) }}.sock')
        periodSeconds: 2
        timeoutSeconds: 3
        failureThreshold: 60
      resources:
        {{- toYaml .resources | nindent 8 }}
      volumeMounts:
        {{- include "aio.mounts" $root | nindent 8 }}
    {{- end }}
  {{- end }}
  containers:
    - name: {{ eq .component "worker" | ternary "worker" "gateway" }}
      image: {{ include "aio.image" (dict "root" $root "image" .image) }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      {{- $role := empty $spec.cores | ternary .role "gateway" }}
      args: {{ eq .component "worker" | ternary (list "worker" "--port" "8080" "--role" $role) (list "serve" "--role" $role) | toJson }}
      ports:
        - name: http
          containerPort: 8080
      env:
        - name: AIO_CATALOG
          value: {{ $catalog }}
        - name: AIO_DRAIN_SECONDS
          value: {{ $root.Values.drain.seconds | quote }}
        {{- include "aio.environment" (mustMergeOverwrite (deepCopy $root.Values.settings) .settings) | nindent 8 }}
        {{- range $name, $key := .secrets }}
        - name: {{ $name }}
          valueFrom:
            secretKeyRef:
              name: {{ include "aio.secretName" $root }}
              key: {{ $key }}
              optional: {{ has $key $root.Values.secret.optional }}
        {{- end }}
      securityContext:
        {{- include "aio.containerSecurity" $root | nindent 8 }}
      startupProbe:
        httpGet: { path: /health/live, port: http }
        periodSeconds: 2
        failureThreshold: 150
      livenessProbe:
        httpGet: { path: /health/live, port: http }
        periodSeconds: 10
        timeoutSeconds: 5
      readinessProbe:
        httpGet: { path: /health/ready, port: http }
        periodSeconds: 5
        timeoutSeconds: 3
      lifecycle:
        preStop:
          # Until load balancers have stopped sending requests; then SIGTERM, and answers in flight are finished.
          exec:
            command: [sleep, {{ $root.Values.drain.endpointSeconds | quote }}]
      resources:
        {{- toYaml $spec.resources | nindent 8 }}
      volumeMounts:
        {{- include "aio.mounts" $root | nindent 8 }}
        {{- if has .component (list "gateway" "worker") }}
        {{- include "aio.coreTlsMount" $root | indent 8 }}
        {{- end }}
  volumes:
    {{- if has .component (list "gateway" "worker") }}
    {{- include "aio.coreTlsVolume" $root | indent 4 }}
    {{- end }}
    {{- include "aio.volumes" (dict "root" $root "data" .data) | nindent 4 }}
{{- end }}
