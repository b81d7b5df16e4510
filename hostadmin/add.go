package hostadmin

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
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
	"github.com/bowline-k8s/bowline/hostcheck"
)

// ErrCannotAsk is returned if no one can answer a question, for example without a terminal.
var ErrCannotAsk = errors.New("cannot ask: standard input is not a terminal")

// Asker asks the user a question.
type Asker interface {
	// Confirm returns true for yes, and ErrCannotAsk if no one can answer.
	Confirm(ctx context.Context, question string) (bool, error)
}

// Reporter shows the progress to the user.
type Reporter interface {
	// Step shows one sentence about what was done or observed.
	Step(text string)
	// Show shows text to read, compare or copy, unchanged.
	Show(text string)
	// Report shows the result of the preflight check.
	Report(r *hostcheck.Report)
}

// Editor adds and removes Host objects.
type Editor struct {
	Hosts    Hosts
	Client   kubernetes.Interface // core/v1, rbac/v1, authorization/v1, certificates/v1
	Asker    Asker
	Reporter Reporter
	// Machine opens the access to an endpoint; it returns an *SSH.
	Machine func(endpoint string, jumps []endpoint.Jump) Machine
	// Command is the command line of this program, for instructions to the user.
	Command string
	// Poll is the poll interval of waits.
	Poll time.Duration
}

func (e *Editor) step(format string, args ...any) { e.Reporter.Step(fmt.Sprintf(format, args...)) }

// Add creates a Host and waits until its node is Ready, or until ctx ends. After an error it may be
// called again, and continues from what is already done.
func (e *Editor) Add(ctx context.Context, r Request) error {
	u, err := r.check()
	if err != nil {
		return err
	}
	have, err := e.place(ctx, &r, u.String())
	if err != nil {
		return err
	}
	if have != nil {
		return e.resume(ctx, &r, have)
	}
	secret, err := e.secret(ctx, &r)
	if err != nil {
		return err
	}
	if secret != nil && len(secret.OwnerReferences) > 0 {
		// It belonged to a Host that is gone, so the API server is about to delete it.
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
		return hint.Add(fmt.Errorf("%s cannot be a node yet", u.Host), "fix the failures above, and run the command again")
	}
	if err := e.rights(ctx, &r); err != nil {
		return err
	}
	made, err := e.Hosts.Create(ctx, r.host(u.String(), pins))
	if err != nil {
		return fmt.Errorf("make the Host %s: %w", r.Name, err)
	}
	e.step("The Host %s is created.", r.Name)
	if err := errors.Join(e.own(ctx, secret, made), e.ownRights(ctx, &r, made)); err != nil {
		return err
	}
	return e.wait(ctx, made)
}

// resume continues with a Host that exists already, and says what of the request does not change it.
func (e *Editor) resume(ctx context.Context, r *Request, have *v1alpha1.Host) error {
	e.step("The Host %s exists already, for this host: continuing.", r.Name)
	if !maps.Equal(r.Labels, have.Spec.Labels) || !slices.Equal(r.Taints, have.Spec.Taints) {
		e.step("Its labels and taints stay unchanged; use kubectl edit host %s to change them.", r.Name)
	}
	if r.Exposure != "" && r.Exposure != have.Spec.KubeletExposure {
		e.step("Its kubeletExposure stays %s; use kubectl edit host %s to change it.", have.Spec.KubeletExposure, r.Name)
	}
	if r.LinkGrace != nil && (have.Spec.LinkGrace == nil || *r.LinkGrace != *have.Spec.LinkGrace) {
		stays := "the default"
		if have.Spec.LinkGrace != nil {
			stays = have.Spec.LinkGrace.Duration.String()
		}
		e.step("Its linkGrace stays %s; use kubectl edit host %s to change it.", stays, r.Name)
	}
	if way, want := jumpsOf(have), r.wanted(); len(want) > 0 && !slices.Equal(way, want) {
		e.step("Its jumps stay unchanged (%s); use kubectl edit host %s to change them and their host keys.", cmp.Or(strings.Join(way, ", "), "none"), r.Name)
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
	if err := e.ownRights(ctx, r, have); err != nil {
		return err
	}
	return e.wait(ctx, have)
}

// prepare is the "host prepare" command that fixes a part of the failures on this machine, over the
// same jumps.
func (e *Editor) prepare(m Machine, node string, u endpoint.URL, pins []string) string {
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
	return fmt.Sprintf("This command fixes some of the failures; it shows each change and asks first:\n  %s\n\n", strings.Join(words, " "))
}

// quoted quotes a word for a shell.
func quoted(word string) string {
	if word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-") == "" {
		return word
	}
	return shell.Quote(word)
}

// place checks that the Host does not collide with what the cluster has. It returns the existing
// Host if it is this one, or nil.
func (e *Editor) place(ctx context.Context, r *Request, endpoint string) (*v1alpha1.Host, error) {
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
			return nil, hint.Add(fmt.Errorf("the Host %s already has the address %s", h.Name, endpoint), "run %s host remove %s first, or keep it", e.Command, h.Name)
		case nodeName(h) == r.nodeName():
			return nil, hint.Add(fmt.Errorf("the Host %s already has the node name %s", h.Name, r.nodeName()), "choose another --node-name")
		}
	}
	switch {
	case have == nil:
	case have.DeletionTimestamp != nil:
		return nil, hint.Add(fmt.Errorf("the Host %s is being removed", r.Name), "wait until it is gone (%s host remove %s shows the progress), or choose another name", e.Command, r.Name)
	case have.Spec.Endpoint != endpoint:
		return nil, hint.Add(fmt.Errorf("the Host %s exists already, with the address %s", r.Name, have.Spec.Endpoint), "choose another name, or run %s host remove %s first", e.Command, r.Name)
	case nodeName(have) != r.nodeName():
		return nil, hint.Add(fmt.Errorf("the Host %s exists already, with the node name %s, which cannot change", r.Name, nodeName(have)), "run %s host remove %s first", e.Command, r.Name)
	default:
		return have, nil
	}
	node, err := e.Client.CoreV1().Nodes().Get(ctx, r.nodeName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return nil, fmt.Errorf("look for a node %s: %w", r.nodeName(), err)
	case node.Annotations[v1alpha1.HostAnnotation] != r.Name:
		return nil, hint.Add(fmt.Errorf("the node %s exists already and does not belong to this host", r.nodeName()),
			"choose another --node-name, or, if its host no longer exists, run kubectl delete node %s", r.nodeName())
	}
	_, err = e.Client.CoreV1().Namespaces().Get(ctx, r.Namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, hint.Add(fmt.Errorf("the namespace %s for the key does not exist", r.Namespace), "set --namespace to Bowline's namespace, or install Bowline first")
	}
	if err != nil && !apierrors.IsForbidden(err) { // a user who may create Secrets there need not be allowed to see it
		return nil, fmt.Errorf("look for the namespace %s: %w", r.Namespace, err)
	}
	return nil, nil
}

// HostsError adds to a failed list of Hosts what to do if the cluster does not have the resource.
func HostsError(err error) error {
	if apierrors.IsNotFound(err) {
		return hint.Add(errors.New("the cluster has no Host resource"), "install Bowline there (kubectl apply -f charts/bowline/crds installs only the resource)")
	}
	return fmt.Errorf("list the Hosts: %w", err)
}

// key returns the Secret with the login's key: that of an earlier attempt, the given key, or a new
// one.
func (e *Editor) key(ctx context.Context, r *Request, have *v1.Secret) (*v1.Secret, error) {
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
				return nil, hint.Add(fmt.Errorf("the Secret %s/%s has another key, from an earlier attempt", r.Namespace, r.Name), "omit --key, or run kubectl delete secret -n %s %s", r.Namespace, r.Name)
			}
		}
		e.step("Using the key of the Secret %s/%s, from an earlier attempt.", r.Namespace, r.Name)
		return have, nil
	}
	key, whose := r.Key, "The given key"
	if len(key) == 0 {
		var err error
		if key, err = newKey(r.Name); err != nil {
			return nil, err
		}
		whose = "A new key"
	}
	secret, err := e.makeSecret(ctx, r, key)
	if err == nil {
		e.step("%s is in the Secret %s/%s.", whose, r.Namespace, r.Name)
	}
	return secret, err
}

// login makes sure that the machine accepts the key.
func (e *Editor) login(ctx context.Context, m Machine, r *Request, u endpoint.URL, key []byte, pins []string, options string) error {
	public, err := publicKey(key)
	if err != nil {
		return err
	}
	err = m.Try(ctx, key, pins)
	if err == nil {
		e.step("%s accepts the key.", u.Host)
		return nil
	}
	var refused *endpoint.AuthError
	if !errors.As(err, &refused) {
		return fmt.Errorf("log in to %s: %w", u.Host, err)
	}
	line := authorizedKey(public, r.Name, r.From, options)
	e.Reporter.Show(fmt.Sprintf("The line for ~/.ssh/authorized_keys of %s on %s:\n\n%s\n\n", u.User, u.Host, line))
	byHand := hint.Add(fmt.Errorf("%s does not accept the key yet", u.Host), "add the line above to ~/.ssh/authorized_keys of %s there, and run the command again", u.User)
	own := m.Own()
	if r.ByHand || own == "" {
		yes, err := e.Asker.Confirm(ctx, "Did you add the line?")
		if errors.Is(err, ErrCannotAsk) || err == nil && !yes {
			return byHand
		}
		if err != nil {
			return err
		}
	} else {
		yes, err := e.Asker.Confirm(ctx, fmt.Sprintf("Add it now, with %s?", own))
		if errors.Is(err, ErrCannotAsk) || err == nil && !yes {
			return byHand
		}
		if err != nil {
			return err
		}
		added, err := m.Install(ctx, line, pins)
		if err != nil {
			return hint.Add(err, "add the line above to ~/.ssh/authorized_keys of %s on %s by hand, and run the command again", u.User, u.Host)
		}
		if added {
			e.step("The line is in ~/.ssh/authorized_keys of %s.", u.User)
		} else {
			e.step("The key is already in ~/.ssh/authorized_keys of %s.", u.User)
		}
	}
	if err := m.Try(ctx, key, pins); err != nil {
		return hint.Add(fmt.Errorf("the key is still refused: %w", err),
			"sshd may read another file (sshd -T | grep -i authorizedkeysfile), or reject the permissions of this one (journalctl -u ssh): fix that, and run the command again")
	}
	e.step("%s accepts the key.", u.Host)
	return nil
}
