{{- define "dovetail.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "dovetail.labels" -}}
app.kubernetes.io/name: dovetail
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end -}}

{{- define "dovetail.selector" -}}
app.kubernetes.io/name: dovetail
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "dovetail.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "dovetail.tlsMount" -}}
{{- if .Values.tls.secret }}
- {name: tls, mountPath: /etc/dovetail/tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "dovetail.tlsVolume" -}}
{{- if .Values.tls.secret }}
- name: tls
  secret: {secretName: {{ .Values.tls.secret }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{- /* section -> name -> value, as environment variables */ -}}
{{- define "dovetail.settings" -}}
{{- range $section, $values := . }}
{{- range $name, $value := $values }}
- name: DOVETAIL_{{ upper $section }}_{{ upper $name }}
  value: {{ toString $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "dovetail.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "dovetail.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "dovetail.antiAffinity" -}}
podAntiAffinity:
  {{- if eq .values.antiAffinity "hard" }}
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: {{ .values.topologyKey }}
      labelSelector:
        matchLabels: {{- include "dovetail.selector" . | nindent 10 }}
  {{- else }}
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: {{ .values.topologyKey }}
        labelSelector:
          matchLabels: {{- include "dovetail.selector" . | nindent 12 }}
  {{- end }}
{{- end -}}

{{- define "dovetail.brokers" -}}
{{- $name := include "dovetail.name" . -}}
{{- $list := list -}}
{{- range $at := until (int .Values.broker.replicas) -}}
{{- $list = append $list (printf "%s-broker-%d.%s-broker:9092" $name $at $name) -}}
{{- end -}}
{{ join "," $list }}
{{- end -}}

{{- /* A StatefulSet of nodes: who they are and where their files lie is all that differs. */ -}}
{{- define "dovetail.nodes" -}}
{{- $name := printf "%s-%s" (include "dovetail.name" .root) .component -}}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $name }}
  labels: {{- include "dovetail.labels" . | nindent 4 }}
spec:
  serviceName: {{ $name }}
  replicas: {{ .values.replicas }}
  # All start together; one after another they are replaced, each when the last one is ready.
  podManagementPolicy: Parallel
  updateStrategy: {type: RollingUpdate}
  selector:
    matchLabels: {{- include "dovetail.selector" . | nindent 6 }}
  template:
    metadata:
      labels: {{- include "dovetail.labels" . | nindent 8 }}
      annotations:
        prometheus.io/scrape: "true"
        prometheus.io/port: "9080"
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ .values.terminationGracePeriodSeconds }}
      securityContext: {{- include "dovetail.podSecurity" . | nindent 8 }}
      {{- with .root.Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      affinity: {{- include "dovetail.antiAffinity" . | nindent 8 }}
      containers:
        - name: node
          image: {{ include "dovetail.image" .root }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          command:
            - /bin/sh
            - -c
            - exec dovetail node --node-id "$(({{ .values.idFirst }} + ${POD_NAME##*-}))" --name "$POD_NAME"
          env:
            - name: POD_NAME
              valueFrom: {fieldRef: {fieldPath: metadata.name}}
            - name: DOVETAIL_NODE_ROLES
              value: {{ .roles | quote }}
            - name: DOVETAIL_COORDINATION_KIND
              value: etcd
            - name: DOVETAIL_COORDINATION_ENDPOINTS
              value: {{ .root.Values.etcd.endpoints | quote }}
            - name: DOVETAIL_COORDINATION_NAMESPACE
              value: {{ .root.Values.etcd.namespace | quote }}
            - name: DOVETAIL_KAFKA_HOST
              value: 0.0.0.0
            - name: DOVETAIL_KAFKA_PORT
              value: "9092"
            - name: DOVETAIL_KAFKA_ADVERTISED_HOST
              value: $(POD_NAME).{{ $name }}.{{ .root.Release.Namespace }}.svc
            - name: DOVETAIL_HTTP_HOST
              value: 0.0.0.0
            - name: DOVETAIL_HTTP_PORT
              value: "9080"
            - name: DOVETAIL_HTTP_METRICS_OPEN
              value: "true"
            - name: DOVETAIL_HTTP_TOKEN
              valueFrom: {secretKeyRef: {name: {{ .root.Values.http.tokenSecret }}, key: token}}
            {{- if and (eq .component "broker") .root.Values.timeline.dsnSecret }}
            - name: DOVETAIL_TIMELINE_STORE
              value: postgres
            - name: DOVETAIL_TIMELINE_DSN
              valueFrom: {secretKeyRef: {name: {{ .root.Values.timeline.dsnSecret }}, key: dsn}}
            {{- end }}
            {{- if .root.Values.tls.secret }}
            - name: DOVETAIL_SECURITY_TLS_CERTIFICATE
              value: /etc/dovetail/tls/tls.crt
            - name: DOVETAIL_SECURITY_TLS_KEY
              value: /etc/dovetail/tls/tls.key
            - name: DOVETAIL_SECURITY_TLS_CA
              value: /etc/dovetail/tls/ca.crt
            - name: DOVETAIL_SECURITY_NODES
              value: {{ .root.Values.tls.commonName | quote }}
            {{- end }}
            {{- include "dovetail.settings" (mergeOverwrite (deepCopy .root.Values.settings) .values.settings) | nindent 12 }}
          ports:
            - {name: kafka, containerPort: 9092}
            - {name: http, containerPort: 9080}
          # A start reads what the last life left; then alive is enough, and ready decides about clients.
          startupProbe:
            httpGet: {path: /livez, port: http}
            periodSeconds: 2
            failureThreshold: 150
          livenessProbe:
            httpGet: {path: /livez, port: http}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet: {path: /readyz, port: http}
            periodSeconds: 5
            timeoutSeconds: 3
          resources: {{- toYaml .values.resources | nindent 12 }}
          securityContext: {{- include "dovetail.containerSecurity" . | nindent 12 }}
          volumeMounts:
            - {name: data, mountPath: /var/lib/dovetail}
            - {name: tmp, mountPath: /tmp}
            {{- include "dovetail.tlsMount" .root | nindent 12 }}
      volumes:
        {{- include "dovetail.tlsVolume" .root | nindent 8 }}
        - name: tmp
          emptyDir: {}
        {{- if not .values.disk }}
        - name: data
          emptyDir: {}
        {{- end }}
  {{- with .values.disk }}
  # A disk belongs to the number of its node, and outlives the pod and the release.
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Retain, whenScaled: Retain}
  volumeClaimTemplates:
    - metadata:
        name: data
      spec:
        accessModes: [ReadWriteOnce]
        {{- with .storageClass }}
        storageClassName: {{ . }}
        {{- end }}
        resources:
          requests:
            storage: {{ .size }}
  {{- end }}
{{- end -}}

{{- /* The name of each pod, also of one that is not ready: nodes must find each other to get ready. */ -}}
{{- define "dovetail.headless" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "dovetail.name" .root }}-{{ .component }}
  labels: {{- include "dovetail.labels" . | nindent 4 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{- include "dovetail.selector" . | nindent 4 }}
  ports:
    - {name: kafka, port: 9092, targetPort: kafka}
    - {name: http, port: 9080, targetPort: http}
{{- end -}}

{{- define "dovetail.disruption" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "dovetail.name" .root }}-{{ .component }}
  labels: {{- include "dovetail.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "dovetail.selector" . | nindent 6 }}
{{- end -}}
