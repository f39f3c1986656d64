{{- /* Of {root, name, template}, as all here: what a sandbox's pod is. */ -}}

{{- define "sandgate.sandboxLabels" -}}
app.kubernetes.io/name: sandbox
app.kubernetes.io/part-of: {{ include "sandgate.name" .root }}
sandgate.dev/template: {{ .name }}
{{- end -}}

{{- define "sandgate.pod" -}}
{{- $t := .template -}}
{{- $runtime := eq $t.driver "sandgate-runtime" -}}
{{- $directories := $t.directories -}}
{{- /* An image that knows nothing of us has no working directory that our user may write to. */ -}}
{{- if $t.inject }}{{ $directories = prepend $directories $t.workdir | uniq }}{{ end -}}
{{- range $t.volumeMounts }}{{ $directories = without $directories .mountPath }}{{ end -}}
{{- if $runtime }}
# When the runtime ends, at its deadline say, the sandbox has ended.
restartPolicy: Never
{{- end }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: 10
{{- with $t.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ int64 $t.user }}
  runAsGroup: {{ int64 $t.user }}
  fsGroup: {{ int64 $t.user }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- if and $runtime $t.inject }}
initContainers:
  - name: runtime
    image: {{ include "sandgate.image" (dict "root" .root "image" .root.Values.images.runtime) }}
    imagePullPolicy: {{ .root.Values.images.pullPolicy }}
    command: [/sandgate-runtime, --install, /run/sandgate/bin/sandgate-runtime]
    resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {memory: 128Mi}}
    securityContext:
      {{- include "sandgate.restricted" .root | nindent 6 }}
      readOnlyRootFilesystem: true
    volumeMounts:
      - {name: run, mountPath: /run/sandgate}
{{- end }}
containers:
  {{- mergeOverwrite (include "sandgate.container" (merge (dict "directories" $directories) .) | fromYaml) $t.container | list | toYaml | nindent 2 }}
{{- with concat (include "sandgate.volumes" (dict "runtime" $runtime "directories" $directories "keys" (include "sandgate.publicKeys" .root)) | fromYamlArray) $t.volumes }}
volumes: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "sandgate.container" -}}
{{- $t := .template -}}
{{- $runtime := eq $t.driver "sandgate-runtime" -}}
name: sandbox
image: {{ default (include "sandgate.image" (dict "root" .root "image" .root.Values.images.sandbox)) $t.image }}
imagePullPolicy: {{ .root.Values.images.pullPolicy }}
workingDir: {{ $t.workdir }}
{{- if $runtime }}
command:
  - {{ ternary "/run/sandgate/bin/sandgate-runtime" "/usr/local/bin/sandgate-runtime" $t.inject }}
args:
  - --listen=[::]:8888
  - --state-dir=/run/sandgate/state
  - --cwd={{ $t.workdir }}
  - --keys=/etc/sandgate/keys
  # Never the name of a claim: a pod that waits in a pool does not know whose it will be.
  - --audience={{ .root.Values.trustDomain }}/$(POD_NAMESPACE)/$(POD_NAME)
  - --pod-uid=$(POD_UID)
  - --termination-log=/dev/termination-log
  {{- if $t.pythonApi }}
  - --python-api
  {{- end }}
  {{- range $t.runtimeArgs }}
  - {{ . | quote }}
  {{- end }}
env:
  - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
  - {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
{{- end }}
{{- if eq $t.driver "sandboxd" }}
ports:
  - {name: files, containerPort: 8080}
  - {name: grpc, containerPort: 9090}
readinessProbe: {httpGet: {path: /v1/health, port: 8080}, periodSeconds: 1}
{{- else if ne $t.driver "exec" }}
ports:
  - {name: sandbox, containerPort: 8888}
readinessProbe: {httpGet: {path: {{ ternary "/healthz" "/" $runtime }}, port: 8888}, periodSeconds: 1}
{{- end }}
resources: {{- toYaml $t.resources | nindent 2 }}
securityContext: {{- include "sandgate.restricted" .root | nindent 2 }}
{{- $mounts := $t.volumeMounts -}}
{{- range $i, $path := .directories }}{{ $mounts = append $mounts (dict "name" (printf "directory-%d" $i) "mountPath" $path) }}{{ end -}}
{{- if $runtime }}
{{- $mounts = append $mounts (dict "name" "run" "mountPath" "/run/sandgate") }}
{{- $mounts = append $mounts (dict "name" "keys" "mountPath" "/etc/sandgate/keys" "readOnly" true) }}
{{- end }}
{{- with $mounts }}
volumeMounts: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "sandgate.volumes" -}}
{{- $volumes := list -}}
{{- range $i, $path := .directories }}{{ $volumes = append $volumes (dict "name" (printf "directory-%d" $i) "emptyDir" dict) }}{{ end -}}
{{- if .runtime }}
{{- $volumes = append $volumes (dict "name" "run" "emptyDir" dict) }}
{{- $volumes = append $volumes (dict "name" "keys" "configMap" (dict "name" .keys)) }}
{{- end }}
{{- toYaml $volumes -}}
{{- end -}}
