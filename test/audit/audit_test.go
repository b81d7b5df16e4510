package audit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const account = "system:serviceaccount:bowline:bowline"

// request returns an event of the account; as is the user that it impersonates, "" for none.
func request(as, verb, resource, namespace, name string) auditv1.Event {
	e := auditv1.Event{Verb: verb, UserAgent: "bowline/test", ResponseStatus: &metav1.Status{Code: 200}}
	e.User.Username, e.User.Groups = account, []string{"system:serviceaccounts"}
	if as != "" {
		e.ImpersonatedUser = e.User.DeepCopy()
		e.ImpersonatedUser.Username, e.ImpersonatedUser.Groups = as, []string{nodesGroup, "system:authenticated"}
	}
	resource, sub, _ := strings.Cut(resource, "/")
	e.ObjectRef = &auditv1.ObjectReference{Resource: resource, Subresource: sub, Namespace: namespace, Name: name}
	return e
}

func by(user string, e auditv1.Event) auditv1.Event {
	e.User.Username = user
	return e
}

func answered(code int32, e auditv1.Event) auditv1.Event {
	e.ResponseStatus.Code = code
	return e
}

// forbidden makes e a 403 response with this message, at a second of the run.
func forbidden(second int, words string, e auditv1.Event) auditv1.Event {
	e.RequestReceivedTimestamp = metav1.NewMicroTime(start.Add(time.Duration(second) * time.Second))
	e.ResponseStatus = &metav1.Status{Code: 403, Message: words}
	return e
}

func grouped(group string, e auditv1.Event) auditv1.Event {
	e.ImpersonatedUser.Groups = append(e.ImpersonatedUser.Groups, group)
	return e
}

func pod(t *testing.T, node, text string) *v1.Pod {
	t.Helper()
	p := &v1.Pod{}
	testutil.Must(t, yaml.UnmarshalStrict([]byte(text), p))
	p.Namespace, p.Spec.NodeName = "default", node
	return p
}

func cluster(t *testing.T) *Cluster {
	return &Cluster{
		Namespace: "bowline", Account: "bowline", Hooks: "bowline-hooks", Tries: "tries",
		Provoked: []Provoked{{From: start, To: start.Add(10 * time.Second), Name: "host2"}, {From: start.Add(20 * time.Second), To: start.Add(30 * time.Second), Resource: "leases"}},
		Nodes:    []string{"host2", "host3"}, Hosts: []string{"host2", "host3"}, Secrets: []string{"host2", "keys"},
		Pods: []*v1.Pod{
			pod(t, "host2", `
metadata: {name: app}
spec:
  serviceAccountName: default
  imagePullSecrets: [{name: pull}]
  volumes:
  - {name: a, secret: {secretName: in-volume}}
  - {name: b, configMap: {name: in-volume}}
  - {name: c, projected: {sources: [{configMap: {name: projected}}, {secret: {name: projected}}]}}
  initContainers: [{name: i, envFrom: [{secretRef: {name: init}}]}]
  containers:
  - name: main
    env:
    - {name: A, valueFrom: {secretKeyRef: {name: in-env, key: k}}}
    - {name: B, valueFrom: {configMapKeyRef: {name: in-env, key: k}}}
    - {name: C, value: plain}
  ephemeralContainers: [{name: e, envFrom: [{configMapRef: {name: debug}}]}]
`),
			pod(t, "host3", "metadata: {name: other, deletionTimestamp: \"2026-01-02T03:05:05Z\", deletionGracePeriodSeconds: 2}\nspec: {volumes: [{name: a, secret: {secretName: of-host3}}]}\n"+
				"status: {conditions: [{type: PodScheduled, status: \"True\", lastTransitionTime: \"2026-01-02T03:04:05Z\"}]}"),
			pod(t, "host1", "metadata: {name: elsewhere}\nspec: {volumes: [{name: a, secret: {secretName: of-host1}}]}"),
			pod(t, "", "metadata: {name: pending}\nspec: {volumes: [{name: a, secret: {secretName: of-none}}]}"),
		},
	}
}

const node2 = "system:node:host2"

// innocent returns every kind of request that a Bowline makes.
func innocent() []auditv1.Event {
	list := []auditv1.Event{
		request("", "watch", "hosts", "", ""),
		request("", "patch", "hosts/status", "", "host2"),
		request("", "watch", "secrets", "bowline", "host2"),
		request("", "get", "secrets", "bowline", "keys"),
		request("", "list", "leases", "bowline", ""),
		request("", "update", "leases", "bowline", "bowline-host-host3"),
		request("", "create", "leases", "bowline", "bowline-replica-one"),
		request("", "get", "nodes", "", "host1"),
		request("", "delete", "nodes", "", "host2"),
		request("", "list", "pods", "", ""),
		request("", "create", "pods/eviction", "default", "app"),
		request(node2, "watch", "pods", "", ""),
		request(node2, "patch", "pods/status", "default", "app"),
		answered(404, request(node2, "delete", "pods", "default", "app")),
		request(node2, "create", "serviceaccounts/token", "default", "default"),
		request(node2, "patch", "nodes/status", "", "host2"),
		request(node2, "update", "leases", "kube-node-lease", "host2"),
		request(node2, "create", "events", "default", ""),
		request("system:node:host3", "watch", "secrets", "default", "of-host3"),
		by(account+"-hooks", request("", "list", "hosts", "", "")),
		by(account+"-hooks", request("", "delete", "leases", "bowline", "bowline-host-host2")),
		// Provoked.
		forbidden(5, `secrets "host2" is forbidden`, request("", "get", "secrets", "bowline", "host2")),
		forbidden(5, `users "system:node:host2" is forbidden`, request("", "get", "nodes", "", "host2")),
		forbidden(25, "leases are forbidden", request("", "update", "leases", "bowline", "bowline-host-host2")),
		// The API server has not seen the pod yet.
		forbidden(1, "no relationship", request("system:node:host3", "get", "secrets", "default", "of-host3")),
		forbidden(9, "no relationship", request("system:node:host3", "watch", "secrets", "default", "of-host3")),
		// The pod is gone, and the node does not know it yet.
		forbidden(59, "no relationship", request("system:node:host3", "get", "pods", "default", "other")),
		forbidden(69, "no relationship", request("system:node:host3", "watch", "secrets", "default", "of-host3")),
		// Other users, which Check ignores.
		by("system:node:host1", request("", "get", "secrets", "default", "of-host1")),
		by("system:serviceaccount:default:default", answered(403, request("", "list", "secrets", "", ""))),
	}
	for _, name := range []string{"pull", "in-volume", "projected", "init", "in-env"} {
		list = append(list, request(node2, "get", "secrets", "default", name))
	}
	for _, name := range []string{"in-volume", "projected", "in-env", "debug"} {
		list = append(list, request(node2, "watch", "configmaps", "default", name))
	}
	version := request("", "get", "", "", "")
	version.ObjectRef = nil
	tried := answered(403, request("", "get", "secrets", "bowline", "another"))
	tried.UserAgent = "tries"
	return append(list, version, tried)
}

func TestInnocent(t *testing.T) {
	for _, f := range cluster(t).Check(innocent()) {
		t.Error(f)
	}
}

// TestOffences: Check finds each offence among all other requests, and nothing else.
func TestOffences(t *testing.T) {
	for name, c := range map[string]struct {
		event auditv1.Event
		why   string
	}{
		"an answer 403 to the account":     {answered(403, request("", "get", "nodes", "", "host2")), "forbidden"},
		"an answer 403 to a node":          {answered(403, request(node2, "get", "secrets", "default", "in-env")), "forbidden"},
		"an answer 403 to a hook":          {answered(403, by(account+"-hooks", request("", "list", "hosts", "", ""))), "forbidden"},
		"an answer 401":                    {answered(401, request(node2, "get", "nodes", "", "host2")), "forbidden"},
		"403, and nothing more is known":   {func() auditv1.Event { e := answered(403, request("", "get", "", "", "")); e.ObjectRef = nil; return e }(), "forbidden"},
		"a secret of another node's pod":   {request(node2, "get", "secrets", "default", "of-host3"), "no pod of the node names it"},
		"a secret of a pod without a node": {request(node2, "get", "secrets", "default", "of-none"), "no pod of the node names it"},
		"a secret named as a configMap":    {request(node2, "get", "secrets", "default", "debug"), "no pod of the node names it"},
		"the same name elsewhere":          {request(node2, "get", "secrets", "kube-system", "in-env"), "no pod of the node names it"},
		"a configMap that no one names":    {request(node2, "watch", "configmaps", "default", "nobody"), "no pod of the node names it"},
		"all secrets of a namespace":       {request(node2, "list", "secrets", "default", ""), "no pod of the node names it"},
		"all secrets, watched":             {request(node2, "watch", "secrets", "", ""), "no pod of the node names it"},
		"a write to a secret":              {request(node2, "update", "secrets", "default", "in-env"), "no more than read"},
		"a token of another account":       {request(node2, "create", "serviceaccounts/token", "kube-system", "default"), "no pod of the node names it"},
		"another node":                     {request(node2, "get", "nodes", "", "host3"), "another node's"},
		"another node's status":            {request(node2, "patch", "nodes/status", "", "host1"), "another node's"},
		"another node's lease":             {request(node2, "update", "leases", "kube-node-lease", "host3"), "another's Lease"},
		"the replicas' lease, by a node":   {request(node2, "get", "leases", "bowline", "bowline-host-host2"), "another's Lease"},
		"another node's pod":               {request(node2, "patch", "pods/status", "default", "other"), "another node's pod"},
		"a node that is not the account's": {request("system:node:host1", "get", "nodes", "", "host1"), "impersonates a user that it must not"},
		"a person":                         {request("admin", "get", "nodes", "", "host2"), "impersonates a user that it must not"},
		"another group":                    {grouped("system:masters", request(node2, "get", "nodes", "", "host2")), "another group"},
		"a node that another user acts as": {by("system:serviceaccount:default:thief", request(node2, "get", "nodes", "", "host2")), "another user acts as the node"},
		"a Secret that no Host names":      {request("", "get", "secrets", "bowline", "another"), "no Host names it"},
		"every Secret of the namespace":    {request("", "list", "secrets", "bowline", ""), "no Host names it"},
		"a Secret of another namespace":    {request("", "watch", "secrets", "default", "host2"), "no Host names it"},
		"a Secret that the account writes": {request("", "patch", "secrets", "bowline", "host2"), "no Host names it"},
		"a configMap, by the account":      {request("", "get", "configmaps", "bowline", "bowline"), "no business"},
		"a token, by the account":          {request("", "create", "serviceaccounts/token", "bowline", "bowline"), "no business"},
		"a node that is deleted":           {request("", "delete", "nodes", "", "host1"), "not one of its nodes"},
		"a pod that is evicted elsewhere":  {request("", "create", "pods/eviction", "default", "elsewhere"), "not its own"},
		"all pods deleted":                 {request("", "deletecollection", "pods", "default", ""), "not its own"},
		"a lease of another namespace":     {request("", "list", "leases", "kube-system", ""), "another's Lease"},
		"a lease of another's":             {request("", "get", "leases", "bowline", "another"), "another's Lease"},
		"the lease of no Host":             {request("", "update", "leases", "bowline", "bowline-host-host9"), "another's Lease"},
		"all leases deleted":               {request("", "deletecollection", "leases", "bowline", ""), "another's Lease"},
		"a hook that reads a Secret":       {by(account+"-hooks", request("", "get", "secrets", "bowline", "host2")), "the hooks"},
		"a hook with another's leases":     {by(account+"-hooks", request("", "list", "leases", "kube-system", "")), "the hooks"},
		"provoked, and too late":           {forbidden(11, `secrets "host2" is forbidden`, request("", "get", "secrets", "bowline", "host2")), "forbidden"},
		"provoked, and too early":          {forbidden(-1, `secrets "host2" is forbidden`, request("", "get", "secrets", "bowline", "host2")), "forbidden"},
		"another's, while one is provoked": {forbidden(5, `secrets "host3" is forbidden`, request("", "get", "secrets", "bowline", "host3")), "forbidden"},
		"a node, while one is provoked":    {forbidden(5, `secrets "host2" is forbidden`, request(node2, "get", "secrets", "bowline", "host2")), "forbidden"},
		"another resource, while provoked": {forbidden(25, "hosts are forbidden", request("", "list", "hosts", "", "")), "forbidden"},
		"refused long after the pod came":  {forbidden(11, "no relationship", request("system:node:host3", "get", "secrets", "default", "of-host3")), "forbidden"},
		"refused before the pod went":      {forbidden(57, "no relationship", request("system:node:host3", "get", "secrets", "default", "of-host3")), "forbidden"},
		"refused long after the pod went":  {forbidden(70, "no relationship", request("system:node:host3", "get", "secrets", "default", "of-host3")), "forbidden"},
		"refused before the pod came":      {forbidden(-1, "no relationship", request("system:node:host3", "get", "secrets", "default", "of-host3")), "forbidden"},
		"refused what another's pod names": {forbidden(1, "no relationship", request(node2, "get", "secrets", "default", "of-host3")), "forbidden"},
		"one that calls itself almost a try": {func() auditv1.Event {
			e := answered(403, request("", "get", "nodes", "", "host2"))
			e.UserAgent = "tries/2"
			return e
		}(), "forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			events := innocent()
			events = slices.Insert(events, len(events)/2, c.event)
			found := cluster(t).Check(events)
			if len(found) != 1 || !strings.Contains(found[0].Why, c.why) || found[0].Event != &events[(len(events)-1)/2] {
				t.Errorf("found %v, want %q", found, c.why)
			}
		})
	}
}

// TestSilence: a user without requests in the log is a finding.
func TestSilence(t *testing.T) {
	if found := cluster(t).Check(nil); len(found) != 3 {
		t.Errorf("of an empty log: %v", found)
	}
	without := slices.DeleteFunc(innocent(), func(e auditv1.Event) bool {
		return e.ImpersonatedUser != nil && e.ImpersonatedUser.Username == "system:node:host3"
	})
	if found := cluster(t).Check(without); len(found) != 1 || !strings.Contains(found[0].String(), "no request of the node host3") {
		t.Errorf("without a node: %v", found)
	}
}

func TestRead(t *testing.T) {
	var log strings.Builder
	want := innocent()
	for _, e := range want {
		line, err := json.Marshal(e)
		testutil.Must(t, err)
		fmt.Fprintf(&log, "%s\n", line)
	}
	got, err := Read(strings.NewReader(log.String() + `{"kind":"Eve`))
	if err != nil || len(got) != len(want) || got[0].Verb != "watch" || got[0].User.Username != account {
		t.Errorf("%v: %d events of %d", err, len(got), len(want))
	}
	if _, err := Read(strings.NewReader(log.String() + "nothing\n")); err == nil || !strings.Contains(err.Error(), "line") {
		t.Errorf("what is no event is read: %v", err)
	}
}
