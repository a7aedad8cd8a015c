{{- /* (root, component, args, keys, data, resources, account): a Job that runs one command of the program. */ -}}
{{- define "aio.job" -}}
{{- $root := .root }}
metadata:
  labels:
    {{- include "aio.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  restartPolicy: OnFailure
  {{- with .account }}
  serviceAccountName: {{ . }}
  {{- end }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  securityContext:
    {{- include "aio.podSecurity" $root | nindent 4 }}
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ .component }}
      image: {{ include "aio.image" (dict "root" $root "image" (dict "variant" "cpu")) }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args: {{ toJson .args }}
      env:
        {{- if .catalog }}
        - name: AIO_CATALOG
          value: {{ .catalog }}
        {{- end }}
        {{- range .keys }}
        - name: {{ . }}
          valueFrom:
            secretKeyRef:
              name: {{ include "aio.secretName" $root }}
              key: {{ . }}
        {{- end }}
      securityContext:
        {{- include "aio.containerSecurity" $root | nindent 8 }}
      resources:
        {{- toYaml .resources | nindent 8 }}
      volumeMounts:
        {{- include "aio.mounts" .mounts | nindent 8 }}
  volumes:
    {{- include "aio.volumes" (dict "root" .mounts "data" .data) | nindent 4 }}
{{- end }}
