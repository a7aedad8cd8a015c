{{- define "aio.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- else -}}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{- end -}}
{{- end }}

{{- define "aio.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* (root, component): the labels that a Service selects. */ -}}
{{- define "aio.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- /* (root, image): an image of the values, by default the chart's. */ -}}
{{- define "aio.image" -}}
{{- $image := mustMergeOverwrite (deepCopy .root.Values.image) (.image | default dict) -}}
{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}-{{ $image.variant }}
{{- end }}

{{- /* A catalogue of the values is a file, any other name is a packaged one. */ -}}
{{- define "aio.catalog" -}}
{{- if hasKey .root.Values.catalogs .name -}}/etc/aio/catalogs/{{ .name }}.toml{{- else -}}{{ .name }}{{- end -}}
{{- end }}

{{- /* For catalogues of pools: a model, and the same model thinking before it answers. The gateways' catalogue says what they
cost. */ -}}
{{- define "aio.tiersOf" -}}
{{- $model := .model -}}
{{- range list "plain" "thinking" }}
[[tiers]]
name = "{{ . }}"
model = "{{ $model }}"
max_tokens = 4096
{{ end }}
[tiers.policy]
kind = "chain-of-thought"
budget_tokens = 2048
instruction = "Think step by step, then give the final answer."
opening = "Let's think step by step.\n"
end_markers = ["</think>", "Final answer"]
answer_opening = "\n\nFinal answer:"
min_answer_tokens = 512
{{ end }}

{{- /* (root, services, pods): the setting with the names by which callers without a key may reach a process: its Services, single
pods behind the headless Service `pods`, routes, and the names in the values' `settings`. */ -}}
{{- define "aio.allowedHosts" -}}
{{- $values := .root.Values }}
{{- $namespace := .root.Release.Namespace }}
{{- $names := list }}
{{- range .services }}{{ $names = append $names . }}{{ end }}
{{- with .pods }}{{ $names = append $names (printf "*.%s" .) }}{{ end }}
{{- $all := list }}
{{- range $names }}
{{- $all = concat $all (list . (printf "%s.%s" . $namespace) (printf "%s.%s.svc" . $namespace) (printf "%s.%s.svc.cluster.local" . $namespace)) }}
{{- end }}
{{- if $values.route.enabled }}{{ $all = concat $all $values.route.hostnames }}{{ end }}
{{- with $values.settings.AIO_ALLOWED_HOSTS }}{{ $all = append $all . }}{{ end -}}
AIO_ALLOWED_HOSTS: {{ join "," $all | quote }}
{{- end }}
