{{- define "sandgate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Names get suffixes, and the longest leaves 40 characters. */}}
{{- define "sandgate.fullname" -}}
{{- $name := include "sandgate.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "sandgate.selector" -}}
app.kubernetes.io/name: {{ include "sandgate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "sandgate.labels" -}}
{{ include "sandgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* What the Service is called, and what callers may say besides, as JSON. Anything else in a request's Host is refused. */}}
{{- define "sandgate.hosts" -}}
{{- $name := include "sandgate.fullname" . -}}
{{- $local := printf "%s.%s" $name .Release.Namespace -}}
{{- $names := list $name $local (printf "%s.svc" $local) (printf "%s.svc.%s" $local .Values.clusterDomain) -}}
{{- concat $names .Values.server.allowedHosts | uniq | toJson -}}
{{- end -}}

{{- define "sandgate.serviceAccount" -}}
{{- default (ternary (include "sandgate.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "sandgate.tokenSecret" -}}
{{- default (printf "%s-token" (include "sandgate.fullname" .)) .Values.token.existingSecret -}}
{{- end -}}

{{- define "sandgate.keysSecret" -}}
{{- default (printf "%s-keys" (include "sandgate.fullname" .)) .Values.keys.existingSecret -}}
{{- end -}}

{{/* The ConfigMap with the public keys, in each namespace of sandboxes. */}}
{{- define "sandgate.publicKeys" -}}
{{- printf "%s-keys" (include "sandgate.fullname" .) -}}
{{- end -}}

{{/* Of {root, image}: image is one of .Values.images. */}}
{{- define "sandgate.image" -}}
{{- $registry := .root.Values.images.registry -}}
{{- with .image -}}
{{- if $registry }}{{ trimSuffix "/" $registry }}/{{ end -}}
{{- .repository -}}
{{- if .digest }}@{{ .digest }}{{ else }}:{{ default $.root.Chart.AppVersion .tag }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* A list of namespaces, as JSON. */}}
{{- define "sandgate.namespaces" -}}
{{- default (list .Release.Namespace) .Values.namespaces | uniq | toJson -}}
{{- end -}}

{{/* The templates by name, with the defaults filled in, as JSON. */}}
{{- define "sandgate.templates" -}}
{{- $all := dict -}}
{{- range $name, $given := .Values.templates -}}
{{- if not (kindIs "invalid" $given) -}}
{{- $_ := set $all $name (mergeOverwrite (deepCopy $.Values.templateDefaults) $given) -}}
{{- end -}}
{{- end -}}
{{- $all | toJson -}}
{{- end -}}

{{/* The namespaces in which there is one of the templates, or for which the server is responsible. */}}
{{- define "sandgate.templateNamespaces" -}}
{{- $known := include "sandgate.namespaces" .root | fromJsonArray -}}
{{- $own := default $known .template.namespaces -}}
{{- range $own -}}
{{- if not (has . $known) -}}
{{- fail (printf "templates.%s.namespaces: %q is not in namespaces, so the server would not see it" $.name .) -}}
{{- end -}}
{{- end -}}
{{- $own | uniq | toJson -}}
{{- end -}}

{{/* Whether mode tunnel may be used. */}}
{{- define "sandgate.portForward" -}}
{{- $modes := list .Values.connection -}}
{{- range (include "sandgate.templates" . | fromJson) -}}
{{- $modes = append $modes .connection -}}
{{- end -}}
{{- $needed := or (has "auto" $modes) (has "tunnel" $modes) -}}
{{- if (kindIs "bool" .Values.rbac.portForward) -}}{{- $needed = .Values.rbac.portForward -}}{{- end -}}
{{- if $needed -}}true{{- end -}}
{{- end -}}

{{/* Whether driver exec may be used. */}}
{{- define "sandgate.exec" -}}
{{- $needed := false -}}
{{- range (include "sandgate.templates" . | fromJson) -}}
{{- if eq .driver "exec" -}}{{- $needed = true -}}{{- end -}}
{{- end -}}
{{- if (kindIs "bool" .Values.rbac.exec) -}}{{- $needed = .Values.rbac.exec -}}{{- end -}}
{{- if $needed -}}true{{- end -}}
{{- end -}}

{{/* Ports of sandboxes that the server must reach, as JSON. */}}
{{- define "sandgate.ports" -}}
{{- $ports := list 8888 -}}
{{- range (include "sandgate.templates" . | fromJson) -}}
{{- if eq .driver "sandboxd" -}}{{- $ports = concat $ports (list 8080 9090) -}}{{- end -}}
{{- end -}}
{{- default ($ports | uniq) .Values.networkPolicy.ports | toJson -}}
{{- end -}}

{{/* What pod security "restricted" wants of a container. */}}
{{- define "sandgate.restricted" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "sandgate.sandboxApiVersion" -}}
{{- $group := "extensions.agents.x-k8s.io" -}}
{{- $old := and (.Capabilities.APIVersions.Has (printf "%s/v1alpha1" $group)) (not (.Capabilities.APIVersions.Has (printf "%s/v1beta1" $group))) -}}
{{- default (printf "%s/%s" $group (ternary "v1alpha1" "v1beta1" $old)) .Values.sandboxApiVersion -}}
{{- end -}}
