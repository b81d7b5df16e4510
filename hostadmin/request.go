package hostadmin

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
)

// Request is what the user asks for.
type Request struct {
	Name      string // of the Host and of its Secret
	Namespace string // Bowline's own, which gets the Secret
	Login     string // user@host[:port]
	Socket    string // of the runtime, a path on the machine
	NodeName  string // default: the Host's name
	Labels    map[string]string
	Taints    []v1.Taint
	// Exposure is the Host's kubeletExposure; empty means process.
	Exposure v1alpha1.KubeletExposure
	// LinkGrace is the Host's linkGrace; nil means the default.
	LinkGrace *metav1.Duration
	// HostKeys are the given pins. Only presented keys among them are trusted, without a question.
	// If empty, the user is shown the keys and asked.
	HostKeys []string
	// ProxyJump is the jumps to the machine, user@host[:port] each, in the order of dialling.
	// JumpHostKeys are the pins of the jumps, like HostKeys.
	ProxyJump    []string
	JumpHostKeys []string
	jumps        []endpoint.Jump // ProxyJump with the accepted keys
	// Key is an existing private key; nil: a new one is created.
	Key []byte
	// From restricts the key to an address or a pattern of sshd's from=; empty: no restriction.
	From string
	// ServiceAccount is Bowline's, NAMESPACE/NAME; empty: the chart's in Namespace.
	ServiceAccount string
	// ByHand: the line is only shown, not installed.
	ByHand bool
}

// endpoint is the Host's endpoint, normalized, because place compares endpoints to detect a second
// Host of one machine.
func (r *Request) endpoint() (endpoint.URL, error) {
	if r.Login == "" {
		return endpoint.URL{}, hint.Add(errors.New("--ssh is not set"), "set it to user@host[:port] of the host")
	}
	if strings.Contains(r.Login, "/") {
		return endpoint.URL{}, hint.Add(fmt.Errorf("--ssh %q has a path", withoutPassword(r.Login)), "use user@host[:port], and set the socket with --socket")
	}
	u, err := endpoint.Parse("ssh://" + r.Login + r.Socket)
	if err != nil {
		return endpoint.URL{}, fmt.Errorf("--ssh or --socket: %w", err)
	}
	if u.User == "" {
		return endpoint.URL{}, hint.Add(fmt.Errorf("--ssh %q has no user", r.Login), "add it, as in root@%s", r.Login)
	}
	if u.Port == 22 {
		u.Port = 0
	}
	u.Host = strings.ToLower(u.Host)
	return u, nil
}

// jump parses one of ProxyJump. A jump has no socket, so a placeholder completes the URL.
func (r *Request) jump(login string) (endpoint.URL, error) {
	if strings.Contains(login, "/") {
		return endpoint.URL{}, fmt.Errorf("--proxy-jump %q: user@host[:port]", withoutPassword(login))
	}
	u, err := endpoint.Parse("ssh://" + login + "/jump")
	if err != nil {
		return endpoint.URL{}, fmt.Errorf("--proxy-jump: %w", err)
	}
	if u.User == "" {
		return endpoint.URL{}, hint.Add(fmt.Errorf("--proxy-jump %q has no user", login), "add it, as in root@%s", login)
	}
	return u, nil
}

// withoutPassword removes a possible password from an error.
func withoutPassword(login string) string {
	if i := strings.LastIndexByte(login, '@'); i >= 0 && strings.Contains(login[:i], ":") {
		return "…" + login[i:]
	}
	return login
}

func (r *Request) nodeName() string { return cmp.Or(r.NodeName, r.Name) }

// Check reports everything that is wrong.
func (r *Request) Check() error {
	_, err := r.check()
	return err
}

func (r *Request) check() (endpoint.URL, error) {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if f := validation.IsDNS1123Label(r.Name); len(f) > 0 {
		fault("NAME %q: use lower case letters, digits and '-', such as box-1", r.Name)
	} else if f := validation.IsDNS1123Subdomain(r.nodeName()); len(f) > 0 {
		fault("--node-name %q: use lower case letters, digits, '-' and '.', such as box-1", r.NodeName)
	}
	if f := validation.IsDNS1123Label(r.Namespace); len(f) > 0 {
		fault("--namespace %q: %s", r.Namespace, f[0])
	}
	if namespace, name, ok := strings.Cut(r.ServiceAccount, "/"); r.ServiceAccount != "" &&
		(!ok || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0) {
		fault("--service-account %q: use NAMESPACE/NAME, such as bowline/bowline", r.ServiceAccount)
	}
	u, err := r.endpoint()
	if err != nil {
		faults = append(faults, err)
	}
	for _, k := range slices.Sorted(maps.Keys(r.Labels)) {
		for _, f := range append(validation.IsQualifiedName(k), validation.IsValidLabelValue(r.Labels[k])...) {
			fault("--label %s=%s: %s", k, r.Labels[k], f)
		}
	}
	for _, k := range r.HostKeys {
		if err := endpoint.CheckHostKey(k); err != nil {
			fault("--host-key: %w", err)
		}
	}
	for _, k := range r.JumpHostKeys {
		if err := endpoint.CheckHostKey(k); err != nil {
			fault("--jump-host-key: %w", err)
		}
	}
	for _, j := range r.ProxyJump {
		if _, err := r.jump(j); err != nil {
			faults = append(faults, err)
		}
	}
	if err := CheckExposure(r.Exposure); err != nil {
		faults = append(faults, err)
	}
	if r.LinkGrace != nil && r.LinkGrace.Duration < time.Second {
		fault("--link-grace %s: at least 1s", r.LinkGrace.Duration)
	}
	if strings.ContainsAny(r.From, "\"\\\n\r") {
		fault("--from %q: use an address or a pattern of sshd's from= option, without quotes", r.From)
	}
	if len(r.Key) > 0 {
		if _, err := publicKey(r.Key); err != nil {
			fault("--key: %w", err)
		}
	}
	return u, errors.Join(faults...)
}

// CheckExposure checks --kubelet-exposure.
func CheckExposure(e v1alpha1.KubeletExposure) error {
	if e == "" || e == v1alpha1.ExposureProcess || e == v1alpha1.ExposureHost {
		return nil
	}
	return fmt.Errorf("--kubelet-exposure %q: process or host", e)
}

// ExposedPort is the port on which the machine listens for a node of that exposure; 0: none.
func ExposedPort(e v1alpha1.KubeletExposure) int {
	if e == v1alpha1.ExposureHost {
		return KubeletPort
	}
	return 0
}

// ParseLabels parses a list of KEY=VALUE.
func ParseLabels(given []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, one := range given {
		k, v, ok := strings.Cut(one, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("--label %q: KEY=VALUE", one)
		}
		if _, twice := labels[k]; twice {
			return nil, fmt.Errorf("--label: %s is set twice", k)
		}
		labels[k] = v
	}
	return labels, nil
}

// ParseTaint parses KEY[=VALUE]:EFFECT, as kubectl writes it.
func ParseTaint(s string) (v1.Taint, error) {
	head, effect, ok := strings.Cut(s, ":")
	key, value, _ := strings.Cut(head, "=")
	t := v1.Taint{Key: key, Value: value, Effect: v1.TaintEffect(effect)}
	switch {
	case !ok || key == "":
		return v1.Taint{}, fmt.Errorf("--taint %q: KEY=VALUE:EFFECT, or KEY:EFFECT", s)
	case !slices.Contains([]v1.TaintEffect{v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute}, t.Effect):
		return v1.Taint{}, fmt.Errorf("--taint %q: the effect is NoSchedule, PreferNoSchedule or NoExecute", s)
	}
	for _, f := range append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...) {
		return v1.Taint{}, fmt.Errorf("--taint %q: %s", s, f)
	}
	return t, nil
}
