{{/*
A part of the plain manifests with the values put in.

`root`: the whole; `part`: the folder below parts/; `namespace`; `accounts`: another namespace of the accounts that roles are bound
to; `files`: which of its files; `images`: by container; `values`: of its containers and pods; `config`: content whose changes
restart its pods.
*/}}
{{- define "bellows.part" -}}
{{- $given := . -}}
{{- range $file := .files }}
{{- $text := $given.root.Files.Get (printf "parts/%s/%s" $given.part $file) }}
{{- if not $text }}{{ fail (printf "the chart lacks parts/%s/%s" $given.part $file) }}{{ end }}
{{- range $document := regexSplit "(?m)^---$" $text -1 }}
{{- $object := fromYaml $document }}
{{- if hasKey $object "Error" }}{{ fail (printf "parts/%s/%s: %s" $given.part $file $object.Error) }}{{ end }}
{{- if $object }}
{{- include "bellows.object" (merge (dict "object" $object) $given) }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* One object of a part. */}}
{{- define "bellows.object" -}}
{{- $object := .object -}}
{{- $is_namespace := eq $object.kind "Namespace" -}}
{{- if $is_namespace }}
{{- $_ := set $object.metadata "name" .namespace }}
{{- $_ := set $object.metadata "annotations" (dict "helm.sh/resource-policy" "keep") }}
{{- else if not (has $object.kind (list "ClusterRole" "ClusterRoleBinding" "MutatingWebhookConfiguration" "ValidatingWebhookConfiguration" "ValidatingAdmissionPolicy" "ValidatingAdmissionPolicyBinding")) }}
{{- $_ := set $object.metadata "namespace" .namespace }}
{{- end }}
{{- range $subject := (default (list) $object.subjects) }}
{{- $_ := set $subject "namespace" (default $.namespace $.accounts) }}
{{- end }}
{{- range $hook := (default (list) $object.webhooks) }}
{{- $_ := set $hook.clientConfig.service "namespace" $.namespace }}
{{- end }}
{{- if has $object.kind (list "Deployment" "DaemonSet") }}
{{- if .values.byFleet }}{{ $_ := set $object.spec "updateStrategy" (dict "type" "OnDelete") }}{{ end }}
{{- include "bellows.pods" (dict "root" .root "spec" $object.spec "images" .images "values" .values "config" .config) }}
{{- end }}
{{- $is_left_out := or (and $is_namespace (eq .namespace .root.Release.Namespace)) (and (eq $object.kind "NetworkPolicy") (not .root.Values.networkPolicy.enabled)) }}
{{- if not $is_left_out }}
---
{{ toYaml $object }}
{{ end }}
{{- end -}}

{{/* Changes the pods of a Deployment or DaemonSet in place; writes nothing. */}}
{{- define "bellows.pods" -}}
{{- $values := .values -}}
{{- if $values.replicas }}{{ $_ := set .spec "replicas" $values.replicas }}{{ end }}
{{- $template := .spec.template }}
{{- if .config }}
{{- $_ := set $template.metadata "annotations" (dict "checksum/config" (sha256sum .config)) }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}{{ $_ := set $template.spec "imagePullSecrets" . }}{{ end }}
{{- with $values.nodeSelector }}{{ $_ := set $template.spec "nodeSelector" . }}{{ end }}
{{- include "bellows.state" (dict "spec" $template.spec "values" $values) }}
{{- range $container := concat (default (list) $template.spec.initContainers) $template.spec.containers }}
{{- $_ := set $container "image" (required (printf "no image of container %s" $container.name) (get $.images $container.image)) }}
{{- if ne $.root.Values.imagePullPolicy "IfNotPresent" }}{{ $_ := set $container "imagePullPolicy" $.root.Values.imagePullPolicy }}{{ end }}
{{- end }}
{{- range $container := default (list) $template.spec.initContainers }}
{{- with $values.resources }}{{ $_ := set $container "resources" . }}{{ end }}
{{- end }}
{{- $journal := default (dict) $values.journal }}
{{- range $container := $template.spec.containers }}
{{- $own := eq $container.name "kube-scheduler" | ternary (dict "resources" (dig "kubeScheduler" "resources" (dict) $values)) $values }}
{{- with $own.resources }}{{ $_ := set $container "resources" . }}{{ end }}
{{- $words := eq $container.name "autoscale-scheduler" | ternary "command" "args" }}
{{- if ne $container.name "kube-scheduler" }}
{{- $args := list }}
{{- $open := eq (toString $values.tokenReview) "false" }}
{{- range $arg := get $container $words }}
{{- if hasPrefix "--runner-image=" $arg }}{{ $arg = printf "--runner-image=%s" (get $.images "runner") }}{{ end }}
{{- if and $journal.maxSize (hasPrefix "--journal-max-size=" $arg) }}{{ $arg = printf "--journal-max-size=%s" $journal.maxSize }}{{ end }}
{{- if and $journal.maxDays (hasPrefix "--journal-max-days=" $arg) }}{{ $arg = printf "--journal-max-days=%d" (int $journal.maxDays) }}{{ end }}
{{- $left_out := or (and $values.deviceLimits (eq $arg "--no-device-limits")) (and $open (hasPrefix "--token-review-" $arg))
  (and (eq (toString $values.monitorTokens) "false") (hasPrefix "--monitor-key-secret=" $arg))
  (and (eq (toString $journal.enabled) "false") (hasPrefix "--journal-" $arg)) }}
{{- if not $left_out }}{{ $args = append $args $arg }}{{ end }}
{{- end }}
{{- if $open }}{{ $args = append $args "--permits-for-anyone" }}{{ end }}
{{- $_ := set $container $words (concat $args (default (list) $values.extraArgs)) }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
The folder of the node in which pods keep their state, where the values say something about it. Without a folder the state is as
long as the pod, and nothing prepares it.
*/}}
{{- define "bellows.state" -}}
{{- with .values.state }}
{{- $path := .hostPath }}
{{- if not $path }}{{ $_ := unset $.spec "initContainers" }}{{ end }}
{{- range $volume := $.spec.volumes }}
{{- if and (eq $volume.name "state") $path }}{{ $_ := set $volume.hostPath "path" $path }}
{{- else if eq $volume.name "state" }}{{ $_ := unset $volume "hostPath" }}{{ $_ := set $volume "emptyDir" dict }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* An image of ours: `root`, `name`. */}}
{{- define "bellows.image" -}}
{{- $registry := trimSuffix "/" .root.Values.registry -}}
{{- printf "%s%s:%s" ($registry | empty | ternary "" (printf "%s/" $registry)) .name (default .root.Chart.AppVersion .root.Values.tag) -}}
{{- end -}}
