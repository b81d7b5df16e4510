package hosts

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
)

// ReasonOtherMachine is the reason of a Host's condition Ready, and of the event, while a
// machine answers that is not the one that the Host was first driven on.
const ReasonOtherMachine = "OtherMachine"

// OtherMachineError says that a machine is not the one that its Host was first driven
// on. Nothing of the node has been sent to it.
type OtherMachineError struct {
	Host            string // the name of the object
	Recorded, Found v1alpha1.MachineStatus
}

func (e *OtherMachineError) Error() string {
	return fmt.Sprintf("the machine is not the one that the Host %[1]s was first driven on, or another login or socket of it: it has %[2]s, and recorded are %[3]s; nothing of the node is sent to it; if it replaces that one, let it in: kubectl patch host %[1]s --subresource=status --type=merge -p '%[4]s'",
		e.Host, identity(e.Found), identity(e.Recorded), e.accepts())
}

// accepts is the patch of the status that lets in the machine that was found, and no other.
// It stands between single quotes, and parts of it are written by those who edit the Host.
func (e *OtherMachineError) accepts() string {
	value := func(s string) string {
		if s == "" {
			return "null"
		}
		text, err := json.Marshal(s)
		if err != nil {
			panic(err) // of a string
		}
		return strings.ReplaceAll(string(text), "'", `\u0027`)
	}
	return fmt.Sprintf(`{"status":{"machine":{"machineID":%s,"hostKey":%s,"user":%s,"socket":%s}}}`,
		value(e.Found.MachineID), value(e.Found.HostKey), value(e.Found.User), value(e.Found.Socket))
}

func identity(m v1alpha1.MachineStatus) string {
	words := []string{"no machine-id", "no SSH host key"}
	if m.MachineID != "" {
		words[0] = "the machine-id " + m.MachineID
	}
	if m.HostKey != "" {
		words[1] = "the SSH host key " + m.HostKey
	}
	if m.User != "" {
		words = append(words, "the user "+strconv.Quote(m.User))
	}
	if m.Socket != "" {
		words = append(words, "the socket "+strconv.Quote(m.Socket))
	}
	return strings.Join(words, " and ")
}

// machineID is how machine-id(5) writes one.
var machineID = regexp.MustCompile(`^[0-9a-f]{32}$`)

// Machine is how a machine is told from others: by what its machine-id(5) holds, and by
// the fingerprint of the SSH host key by which it was accepted. What is no machine-id,
// such as the "uninitialized" of an image, is none.
func Machine(id, hostKey string) v1alpha1.MachineStatus {
	m := v1alpha1.MachineStatus{HostKey: hostKey}
	if id = strings.ToLower(id); machineID.MatchString(id) {
		m.MachineID = id
	}
	return m
}

// another tells whether found is another machine than the recorded one. Everybody who may
// read Nodes knows a machine-id, and only the machine has the private half of its host
// key: so the key has to be the same, and the machine-id where one is recorded. The key is
// the sshd's, and what is run there the user's: any login of the machine could answer as
// root's, and make a socket of its own. So these have to be the same as well.
func another(recorded, found v1alpha1.MachineStatus) bool {
	differs := func(recorded, found string) bool { return recorded != "" && found != recorded }
	return found.HostKey != recorded.HostKey || differs(recorded.MachineID, found.MachineID) ||
		differs(recorded.User, found.User) || differs(recorded.Socket, found.Socket)
}

// completed is the record with what an older Bowline did not record of the same machine.
func completed(recorded *v1alpha1.MachineStatus, found v1alpha1.MachineStatus) v1alpha1.MachineStatus {
	if recorded == nil {
		return found
	}
	m := *recorded
	m.User, m.Socket = found.User, found.Socket
	return m
}

// recordTries is how often a record is tried that somebody else's change of the Host was
// in the way of.
const recordTries = 5

// Recognize tells whether a machine may be driven for the Host called name: a driver asks
// before it sends anything of the node there. The first machine is put on record before
// it is driven; any other is an *OtherMachineError, for as long as the record stands.
//
// A Host's spec and status are one object, so that a read of the record never goes with an
// older spec.
func (s *Source) Recognize(ctx context.Context, name string, found v1alpha1.MachineStatus) error {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	h := s.get(name)
	if h == nil {
		return fmt.Errorf("there is no Host %s any more", name)
	}
	for try := 1; h.Status.Machine == nil || *h.Status.Machine != completed(h.Status.Machine, found); try++ {
		if h.Status.Machine != nil && another(*h.Status.Machine, found) {
			break
		}
		// What has been read may be of before another process recorded one.
		var err error
		if h, err = s.cfg.API.Get(ctx, name); err != nil {
			return fmt.Errorf("read which machine the Host %s was first driven on: %w", name, err)
		}
		want := completed(h.Status.Machine, found)
		if h.Status.Machine != nil && (another(*h.Status.Machine, found) || *h.Status.Machine == want) {
			break
		}
		var now *v1alpha1.Host
		now, err = s.cfg.API.RecordMachine(ctx, h, want)
		switch {
		case err == nil && (now.Status.Machine == nil || *now.Status.Machine != want):
			// helm upgrades no CRDs: to refuse the machine would end every node of such a cluster.
			klog.FromContext(ctx).Info("The machine of the Host, or the login there, is not recorded, so any other one may take its place: the cluster's CRD of Hosts is of an older Bowline; apply that of this one", "crd", "charts/bowline/crds/bowline.io_hosts.yaml")
			return nil
		case err == nil:
			klog.FromContext(ctx).Info("The machine of the Host is recorded: no other one is driven by it", "machineID", want.MachineID, "hostKey", want.HostKey, "user", want.User, "socket", want.Socket)
			return nil
		case !apierrors.IsConflict(err) || try == recordTries:
			return fmt.Errorf("record the machine of the Host %s: %w", name, err)
		}
	}
	if another(*h.Status.Machine, found) {
		return &OtherMachineError{name, *h.Status.Machine, found}
	}
	return nil
}

// component is who events on Hosts are from.
const component = "bowline"

// announce tells of a machine that is refused, by one event each time that this becomes
// so. An event that cannot be written is in the log: the condition says the same.
func (s *Source) announce(ctx context.Context, h *v1alpha1.Host, now *v1alpha1.HostStatus) {
	is := meta.FindStatusCondition(now.Conditions, v1alpha1.ConditionReady)
	was := meta.FindStatusCondition(h.Status.Conditions, v1alpha1.ConditionReady)
	if is == nil || is.Reason != ReasonOtherMachine || was != nil && was.Reason == is.Reason && was.Message == is.Message {
		return
	}
	at := metav1.NewTime(time.Now())
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	// What belongs to no namespace has its events in default.
	_, err := s.cfg.Client.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &v1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", h.Name, at.UnixNano()), Namespace: metav1.NamespaceDefault},
		InvolvedObject: v1.ObjectReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "Host", Name: h.Name, UID: h.UID, ResourceVersion: h.ResourceVersion,
		},
		Type: v1.EventTypeWarning, Reason: is.Reason, Message: eventMessage(is.Message), Count: 1, FirstTimestamp: at, LastTimestamp: at,
		Source: v1.EventSource{Component: component},
	}, metav1.CreateOptions{})
	if err != nil {
		klog.FromContext(ctx).Info("The event on the Host could not be written", "reason", is.Reason, "err", err)
	}
}

// eventMessage is cut to what the API server takes of an event.
func eventMessage(message string) string {
	const most = 1024
	return strings.ToValidUTF8(message[:min(most, len(message))], "")
}
