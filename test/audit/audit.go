// Package audit checks the API server's audit log for the requests of a Bowline in the cluster:
// those of its service account, and those of the nodes that it impersonates. The log comes from a
// lab that was started with --audit.
package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

const (
	nodePrefix  = "system:node:"
	nodesGroup  = "system:nodes"
	tokens      = "serviceaccounts/token"
	leases      = "leases"
	nodeLeases  = "kube-node-lease" // the namespace
	hostLease   = "bowline-host-"
	replicaName = "bowline-replica-"
)

// Cluster describes the cluster while the log was written. The log is checked against it.
type Cluster struct {
	Namespace string   // Bowline's own
	Account   string   // its service account there
	Hooks     string   // the service account of the chart's hooks
	Nodes     []string // that the account may impersonate
	Hosts     []string // whose Leases the account may hold
	Secrets   []string // of its namespace, named by Hosts
	Pods      []*v1.Pod
	// Tries is the user agent of requests that a test makes as the account and that must be
	// refused.
	Tries string
	// Provoked lists the refusals that a test caused by taking rights away.
	Provoked []Provoked
}

// Provoked is a period in which the account itself may be refused something.
type Provoked struct {
	From, To time.Time
	Name     string // the Host whose own requests, and those of its node and its Secret, may be refused
	Resource string // all objects of this resource, if Name is empty
}

func (p Provoked) covers(e *auditv1.Event) bool {
	at := e.RequestReceivedTimestamp.Time
	if at.Before(p.From) || at.After(p.To) || e.ResponseStatus == nil {
		return false
	}
	if p.Name == "" {
		return e.ObjectRef != nil && e.ObjectRef.Resource == p.Resource
	}
	// A refused impersonation names the user in its message; the request's object is the one that
	// the impersonated user would have accessed.
	said := e.ResponseStatus.Message
	return strings.Contains(said, `"`+p.Name+`"`) || strings.Contains(said, `"`+nodePrefix+p.Name+`"`)
}

// IsTry reports whether a request is one of the test's own tries.
func (c *Cluster) IsTry(e auditv1.Event) bool { return c.Tries != "" && e.UserAgent == c.Tries }

// Finding is a request that should not have been made.
type Finding struct {
	Event *auditv1.Event // nil: the log lacks something
	Why   string
}

func (f Finding) String() string {
	e := f.Event
	if e == nil {
		return f.Why
	}
	who := e.User.Username
	if e.ImpersonatedUser != nil {
		who += " as " + e.ImpersonatedUser.Username
	}
	return fmt.Sprintf("%s: %s: %s %s: %d, by %s, %s", f.Why, who, e.Verb, e.RequestURI, code(e), e.UserAgent, e.RequestReceivedTimestamp.Format("15:04:05.000"))
}

// Read reads a log with one event a line. It ignores a last line without an end, which is still
// being written.
func Read(r io.Reader) ([]auditv1.Event, error) {
	var all []auditv1.Event
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		var e auditv1.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("line %d of the audit log: %w", len(all)+1, err)
		}
		all = append(all, e)
	}
}

// Check returns the requests that the account and its nodes should not have made. A user without
// any request in the log is a finding too, because the log then proves nothing about it.
func (c *Cluster) Check(events []auditv1.Event) []Finding {
	j := checker{Cluster: c, seen: map[string]bool{}}
	j.named, j.moments = c.named()
	for i := range events {
		e := &events[i]
		if c.IsTry(*e) {
			continue
		}
		if why := j.wrong(e); why != "" {
			j.findings = append(j.findings, Finding{Event: e, Why: why})
		}
	}
	for _, n := range c.Nodes {
		if !j.seen[nodePrefix+n] {
			j.findings = append(j.findings, Finding{Why: "the log has no request of the node " + n})
		}
	}
	if !j.seen[c.user(c.Account)] {
		j.findings = append(j.findings, Finding{Why: "the log has no request of the service account"})
	}
	return j.findings
}

func (c *Cluster) user(account string) string {
	return "system:serviceaccount:" + c.Namespace + ":" + account
}

type checker struct {
	*Cluster
	named    map[reference]bool
	moments  map[reference][]span // when pods that name it came to their node or left it
	seen     map[string]bool      // users
	findings []Finding
}

// wrong says what is wrong with a request. It returns "" for the requests of other users.
func (j *checker) wrong(e *auditv1.Event) string {
	account := e.User.Username == j.user(j.Account)
	hooks := j.Hooks != "" && e.User.Username == j.user(j.Hooks)
	acting := &e.User
	if e.ImpersonatedUser != nil {
		acting = e.ImpersonatedUser
	}
	node, isNode := strings.CutPrefix(acting.Username, nodePrefix)
	if !account && !hooks && !(isNode && slices.Contains(j.Nodes, node)) {
		return ""
	}
	j.seen[acting.Username] = true
	if e.ImpersonatedUser != nil {
		switch {
		case !account:
			return "another user acts as the node"
		case !isNode || !slices.Contains(j.Nodes, node):
			return "the account impersonates a user that it must not"
		case slices.ContainsFunc(acting.Groups, func(g string) bool { return g != nodesGroup && g != "system:authenticated" }):
			return "the account has given itself another group"
		}
	}
	switch c := code(e); {
	case c == http.StatusForbidden || c == http.StatusUnauthorized:
		if isNode && j.unsettled(node, e) {
			return ""
		}
		if account && e.ImpersonatedUser == nil && slices.ContainsFunc(j.Provoked, func(p Provoked) bool { return p.covers(e) }) {
			return ""
		}
		return "forbidden"
	case e.ObjectRef == nil:
		return ""
	case isNode:
		return j.node(node, e)
	case account:
		return j.account(e)
	default:
		return j.hooks(e)
	}
}

// behind is how long the node authorizer may lag: until it allows a node to read the objects of a
// new pod, and until the node learns that a pod is gone. The authorizer and the node both watch
// pods, and either may be ahead.
const behind = 10 * time.Second

// span is a period in which the API server and a node may disagree about a pod.
type span struct{ from, to time.Time }

// unsettled reports whether that lag alone explains the refusal of a node's request.
func (j *checker) unsettled(node string, e *auditv1.Event) bool {
	ref := e.ObjectRef
	if ref == nil || ref.Name == "" || j.node(node, e) != "" {
		return false
	}
	object := reference{node, resourceOf(ref), types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}}
	at := e.RequestReceivedTimestamp.Time
	return slices.ContainsFunc(j.moments[object], func(s span) bool { return !at.Before(s.from) && at.Before(s.to) })
}

// node says why a node may not make the request, or returns "".
func (j *checker) node(node string, e *auditv1.Event) string {
	ref := e.ObjectRef
	object := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	switch resource := resourceOf(ref); resource {
	case "secrets", "configmaps", tokens:
		if !j.named[reference{node, resource, object}] {
			return "no pod of the node names it"
		}
		if reads := slices.Contains([]string{"get", "list", "watch"}, e.Verb); reads == (resource == tokens) {
			return "a node does no more than read objects, and ask for tokens"
		}
	case "nodes", "nodes/status":
		if ref.Name != node {
			return "another node's"
		}
	case leases:
		if object != (types.NamespacedName{Namespace: nodeLeases, Name: node}) {
			return "another's Lease"
		}
	case "pods", "pods/status":
		if ref.Name != "" && !j.named[reference{node, "pods", object}] {
			return "another node's pod"
		}
	}
	return ""
}

// account says why the service account may not make the request as itself, or returns "".
func (j *checker) account(e *auditv1.Event) string {
	ref := e.ObjectRef
	reads := slices.Contains([]string{"get", "list", "watch"}, e.Verb)
	switch resourceOf(ref) {
	case "secrets":
		if !reads || ref.Namespace != j.Namespace || !slices.Contains(j.Secrets, ref.Name) {
			return "no Host names it"
		}
	case "configmaps", tokens:
		return "the account has no business with it"
	case "nodes", "nodes/status":
		if !reads && !slices.Contains(j.Nodes, ref.Name) {
			return "not one of its nodes"
		}
	case "pods", "pods/eviction":
		if !reads && !slices.ContainsFunc(j.Nodes, func(n string) bool {
			return j.named[reference{n, "pods", types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}}]
		}) {
			return "a pod of a node that is not its own"
		}
	case leases:
		host, isHost := strings.CutPrefix(ref.Name, hostLease)
		own := isHost && slices.Contains(j.Hosts, host) || strings.HasPrefix(ref.Name, replicaName) || ref.Name == "" && reads
		if ref.Namespace != j.Namespace || !own {
			return "another's Lease"
		}
	}
	return ""
}

// hooks says why the account of the chart's hooks may not make the request, or returns "". It may
// use Hosts, and the Leases that replicas leave behind.
func (j *checker) hooks(e *auditv1.Event) string {
	switch ref := e.ObjectRef; {
	case ref.Resource == "hosts":
		return ""
	case ref.Resource == leases && ref.Namespace == j.Namespace:
		return ""
	}
	return "the hooks have no business with it"
}

func code(e *auditv1.Event) int32 {
	if e.ResponseStatus == nil {
		return 0
	}
	return e.ResponseStatus.Code
}

func resourceOf(ref *auditv1.ObjectReference) string {
	if ref.Subresource != "" {
		return ref.Resource + "/" + ref.Subresource
	}
	return ref.Resource
}
