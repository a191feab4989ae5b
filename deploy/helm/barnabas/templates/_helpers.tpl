{{- define "barnabas.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "barnabas.labels" -}}
app.kubernetes.io/name: barnabas
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "barnabas.voters" -}}
{{- $name := include "barnabas.name" . -}}
{{- $port := .Values.controllerPort -}}
{{- range $index := until (int .Values.replicas) -}}
{{- if $index }},{{ end -}}
{{ add1 $index }}@{{ $name }}-{{ $index }}.{{ $name }}-nodes:{{ $port }}
{{- end -}}
{{- end }}
