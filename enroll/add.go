package enroll

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
	"github.com/bowline-k8s/bowline/hostcheck"
)

// ErrNobody says that nobody is there to answer a question.
var ErrNobody = errors.New("nobody can be asked here")

// Asker puts a question to a person.
type Asker interface {
	// Confirm is true for a yes. ErrNobody: nobody can be asked.
	Confirm(ctx context.Context, question string) (bool, error)
}

// Reporter tells a person how far it is.
type Reporter interface {
	// Step is one sentence: something is done, or has been seen.
	Step(text string)
	// Show is text to read, to compare or to copy, as it stands.
	Show(text string)
	// Report is what the preflight found.
	Report(r *hostcheck.Report)
}

// Enroller makes nodes of machines, and ends that.
type Enroller struct {
	Hosts    Hosts
	Client   kubernetes.Interface // core/v1, rbac/v1, authorization/v1, certificates/v1
	Asker    Asker
	Reporter Reporter
	// Machine is the way to an endpoint; *SSH.
	Machine func(endpoint string, jumps []endpoint.Jump) Machine
	// Command is how this program is called, for what is told to do next.
	Command string
	// Poll is the time between two looks at what is waited for.
	Poll time.Duration
}

func (e *Enroller) step(format string, args ...any) { e.Reporter.Step(fmt.Sprintf(format, args...)) }

// Add makes a Host and waits for its node to be Ready, until ctx ends. What is done
// already is gone on from: after an error it may be called again.
func (e *Enroller) Add(ctx context.Context, r Request) error {
	u, err := r.check()
	if err != nil {
		return err
	}
	have, err := e.place(ctx, &r, u.String())
	if err != nil {
		return err
	}
	if have != nil {
		e.step("The Host %s is there already, of this machine: going on.", r.Name)
		if !maps.Equal(r.Labels, have.Spec.Labels) || !slices.Equal(r.Taints, have.Spec.Taints) {
			e.step("Its labels and taints stay as they are; kubectl edit host %s changes them.", r.Name)
		}
		if r.Exposure != "" && r.Exposure != have.Spec.KubeletExposure {
			e.step("Its kubeletExposure stays %s; kubectl edit host %s changes it.", have.Spec.KubeletExposure, r.Name)
		}
		if way, want := jumpsOf(have), r.wanted(); len(want) > 0 && !slices.Equal(way, want) {
			e.step("Its jumps stay as they are (%s); kubectl edit host %s changes them and their host keys.", cmp.Or(strings.Join(way, ", "), "none"), r.Name)
		}
		secret, err := e.madeSecret(ctx, r.Namespace, r.Name)
		if err != nil {
			return err
		}
		if secret != nil {
			if err := e.own(ctx, secret, have); err != nil {
				return err
			}
		}
		if err := e.ownRights(ctx, &r, have); err != nil {
			return err
		}
		return e.wait(ctx, have)
	}
	secret, err := e.secret(ctx, &r)
	if err != nil {
		return err
	}
	if secret != nil && len(secret.OwnerReferences) > 0 {
		// Of a Host that has gone: the API server is about to delete it.
		if err := e.dropSecret(ctx, secret); err != nil {
			return err
		}
		secret = nil
	}
	jumps, err := e.jumps(ctx, &r)
	if err != nil {
		return err
	}
	machine := e.Machine(u.String(), r.jumps)
	pins, err := e.hostKeys(ctx, machine, "--host-key", r.HostKeys, u)
	if err != nil {
		return err
	}
	if secret, err = e.key(ctx, &r, secret); err != nil {
		return err
	}
	key := secret.Data[v1.SSHAuthPrivateKey]
	for i, j := range jumps {
		next := u
		if i+1 < len(jumps) {
			next = jumps[i+1].at
		}
		if err := e.login(ctx, j.machine, &r, j.at, key, r.jumps[i].HostKeys, jumpOptions(next)); err != nil {
			return fmt.Errorf("jump %s: %w", j.at.Host, err)
		}
	}
	if err := e.login(ctx, machine, &r, u, key, pins, listenOptions(ExposedPort(r.Exposure))); err != nil {
		return err
	}
	report, err := machine.Check(ctx, key, pins)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	e.Reporter.Report(report)
	if !report.Fit {
		e.Reporter.Show(e.prepare(machine, r.nodeName(), u, pins))
		return fmt.Errorf("no node can be made of %s yet: fix the failures above, and run the command again", u.Host)
	}
	if err := e.rights(ctx, &r); err != nil {
		return err
	}
	made, err := e.Hosts.Create(ctx, r.host(u.String(), pins))
	if err != nil {
		return fmt.Errorf("make the Host %s: %w", r.Name, err)
	}
	e.step("The Host %s is made.", r.Name)
	if err := errors.Join(e.own(ctx, secret, made), e.ownRights(ctx, &r, made)); err != nil {
		return err
	}
	return e.wait(ctx, made)
}

// prepare is the command that fixes a part of what the preflight found, for this machine,
// by the same way.
func (e *Enroller) prepare(m Machine, node string, u endpoint.URL, pins []string) string {
	words := append(strings.Fields(e.Command), "host", "prepare")
	words = append(words, m.Flags()...)
	for _, pin := range pins {
		if key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(pin)); err == nil {
			words = append(words, "--host-key", ssh.FingerprintSHA256(key))
		}
	}
	words = append(words, "--node-name", node, u.String())
	for i, word := range words {
		words[i] = quoted(word)
	}
	return fmt.Sprintf("Some failures are fixed by this command, which shows each change and asks first:\n  %s\n\n", strings.Join(words, " "))
}

// quoted is a word as a shell takes it.
func quoted(word string) string {
	if word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-") == "" {
		return word
	}
	return shell.Quote(word)
}

// place finds out that the cluster has room for the host: the Host that is this one
// already, or nil.
func (e *Enroller) place(ctx context.Context, r *Request, endpoint string) (*v1alpha1.Host, error) {
	list, err := e.Hosts.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, HostsError(err)
	}
	var have *v1alpha1.Host
	for i := range list.Items {
		h := &list.Items[i]
		switch {
		case h.Name == r.Name:
			have = h
		case h.Spec.Endpoint == endpoint:
			return nil, fmt.Errorf("the Host %s is of %s already: %s host remove %s first, or leave it", h.Name, endpoint, e.Command, h.Name)
		case nodeName(h) == r.nodeName():
			return nil, fmt.Errorf("the Host %s is the node %s already: choose another --node-name", h.Name, r.nodeName())
		}
	}
	switch {
	case have == nil:
	case have.DeletionTimestamp != nil:
		return nil, fmt.Errorf("the Host %s is being removed: wait for that (%s host remove %s shows what it waits for), or choose another name", r.Name, e.Command, r.Name)
	case have.Spec.Endpoint != endpoint:
		return nil, fmt.Errorf("there is a Host %s already, of %s: choose another name, or %s host remove %s first", r.Name, have.Spec.Endpoint, e.Command, r.Name)
	case nodeName(have) != r.nodeName():
		return nil, fmt.Errorf("there is a Host %s already, which is the node %s, and a node cannot be renamed: %s host remove %s first", r.Name, nodeName(have), e.Command, r.Name)
	default:
		return have, nil
	}
	node, err := e.Client.CoreV1().Nodes().Get(ctx, r.nodeName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return nil, fmt.Errorf("look for a node %s: %w", r.nodeName(), err)
	case node.Annotations[v1alpha1.HostAnnotation] != r.Name:
		return nil, fmt.Errorf("there is a node %s already, made of something else: choose another --node-name, or, if that machine is gone for good, kubectl delete node %s", r.nodeName(), r.nodeName())
	}
	_, err = e.Client.CoreV1().Namespaces().Get(ctx, r.Namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no namespace %s, where Bowline was to find the key: say Bowline's own by --namespace, or install it first", r.Namespace)
	}
	if err != nil && !apierrors.IsForbidden(err) { // who may make Secrets there need not see it
		return nil, fmt.Errorf("look for the namespace %s: %w", r.Namespace, err)
	}
	return nil, nil
}

// HostsError says of a list of Hosts that failed what to do, in a cluster that knows none.
func HostsError(err error) error {
	if apierrors.IsNotFound(err) {
		return errors.New("the cluster knows no Hosts: install Bowline there (kubectl apply -f charts/bowline/crds for the resource alone)")
	}
	return fmt.Errorf("list the Hosts: %w", err)
}

// key is the Secret with the login's key: that of a first try, the one given, or a new
// one.
func (e *Enroller) key(ctx context.Context, r *Request, have *v1.Secret) (*v1.Secret, error) {
	if have != nil {
		old, err := publicKey(have.Data[v1.SSHAuthPrivateKey])
		if err != nil {
			return nil, fmt.Errorf("the Secret %s/%s: %w", r.Namespace, r.Name, err)
		}
		if len(r.Key) > 0 {
			given, err := publicKey(r.Key)
			if err != nil {
				return nil, fmt.Errorf("--key: %w", err)
			}
			if !bytes.Equal(old.Marshal(), given.Marshal()) {
				return nil, fmt.Errorf("the Secret %s/%s has another key, of a first try: leave --key out, or kubectl delete secret -n %s %s", r.Namespace, r.Name, r.Namespace, r.Name)
			}
		}
		e.step("The key is that of the Secret %s/%s, of a first try.", r.Namespace, r.Name)
		return have, nil
	}
	key, whose := r.Key, "The key that was given"
	if len(key) == 0 {
		var err error
		if key, err = newKey(r.Name); err != nil {
			return nil, err
		}
		whose = "A key of its own is made, and"
	}
	secret, err := e.makeSecret(ctx, r, key)
	if err == nil {
		e.step("%s is in the Secret %s/%s.", whose, r.Namespace, r.Name)
	}
	return secret, err
}

// login has the machine take the key.
func (e *Enroller) login(ctx context.Context, m Machine, r *Request, u endpoint.URL, key []byte, pins []string, options string) error {
	public, err := publicKey(key)
	if err != nil {
		return err
	}
	err = m.Try(ctx, key, pins)
	if err == nil {
		e.step("%s takes the key.", u.Host)
		return nil
	}
	var refused *endpoint.AuthError
	if !errors.As(err, &refused) {
		return fmt.Errorf("log in to %s: %w", u.Host, err)
	}
	line := authorizedKey(public, r.Name, r.From, options)
	e.Reporter.Show(fmt.Sprintf("The line for ~/.ssh/authorized_keys of %s on %s:\n\n%s\n\n", u.User, u.Host, line))
	byHand := fmt.Errorf("%s does not take the key yet: add the line above to ~/.ssh/authorized_keys of %s there, and run the command again", u.Host, u.User)
	own := m.Own()
	if r.ByHand || own == "" {
		yes, err := e.Asker.Confirm(ctx, "Is the line there now?")
		if errors.Is(err, ErrNobody) || err == nil && !yes {
			return byHand
		}
		if err != nil {
			return err
		}
	} else {
		yes, err := e.Asker.Confirm(ctx, fmt.Sprintf("Put it there now, by %s?", own))
		if errors.Is(err, ErrNobody) || err == nil && !yes {
			return byHand
		}
		if err != nil {
			return err
		}
		added, err := m.Install(ctx, line, pins)
		if err != nil {
			return fmt.Errorf("%w; or add the line above to ~/.ssh/authorized_keys of %s on %s by hand, and run the command again", err, u.User, u.Host)
		}
		if added {
			e.step("The line is in ~/.ssh/authorized_keys of %s.", u.User)
		} else {
			e.step("The key was in ~/.ssh/authorized_keys of %s already.", u.User)
		}
	}
	if err := m.Try(ctx, key, pins); err != nil {
		return fmt.Errorf("the key is still refused: sshd may read another file (sshd -T | grep -i authorizedkeysfile), or not trust the modes of this one (journalctl -u ssh); run the command again when that is mended: %w", err)
	}
	e.step("%s takes the key.", u.Host)
	return nil
}
