package provider

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/host/budget"
)

// nodeStatus holds what the node object shall say and hands full nodes to
// virtual-kubelet's NodeController. It is its NodeProvider.
type nodeStatus struct {
	registration Registration
	port         int32
	repairEvery  time.Duration
	back         func() // told of each report after an outage; may be nil

	mu         sync.Mutex
	machine    Machine
	conditions []Condition // Ready last, as older controllers expect
	images     []v1.ContainerImage

	changed chan struct{} // something above changed, or the object is gone
	wrong   chan struct{} // the server shows a condition that we did not write
	again   chan struct{} // the server answers again after it did not
	senders sync.WaitGroup
}

func newNodeStatus(c Config) *nodeStatus {
	s := &nodeStatus{
		registration: c.Registration,
		machine:      c.Machine,
		repairEvery:  c.RepairInterval,
		back:         c.Back,
		changed:      make(chan struct{}, 1),
		wrong:        make(chan struct{}, 1),
		again:        make(chan struct{}, 1),
		conditions: []Condition{
			{v1.NodeMemoryPressure, v1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"},
			{v1.NodeDiskPressure, v1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"},
			{v1.NodePIDPressure, v1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available"},
			{v1.NodeReady, v1.ConditionFalse, "KubeletNotReady", "container runtime status check may not have completed yet"},
		},
	}
	s.registration.instance = c.Instance
	if c.Server != nil {
		s.port = c.Server.Port()
	}
	return s
}

// Ping never fails: a failing ping would stop status and lease in silence, and
// the node would turn Unknown with no cause. What is wrong is said in conditions.
func (s *nodeStatus) Ping(context.Context) error { return nil }

// NotifyNodeStatus starts the one sender. The callback fills a channel of one
// and blocks when it is full, so it is called from a goroutine of its own.
func (s *nodeStatus) NotifyNodeStatus(ctx context.Context, notify func(*v1.Node)) {
	s.senders.Go(func() {
		defer budget.From(ctx).Recover("write the node's status")
		s.send(ctx, notify)
	})
}

// After an outage the node controller has called the node Unknown, or is about
// to, and the watch that would show it may still be in client-go's back-off, of
// up to a minute. So the status is reported without being asked for, for so long.
const (
	reportsAfterOutage = 7
	reportAfterOutage  = 10 * time.Second
)

func (s *nodeStatus) send(ctx context.Context, notify func(*v1.Node)) {
	var lastRepair time.Time
	var due, report <-chan time.Time
	reports := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		case <-s.wrong:
			if due != nil {
				continue
			}
			if wait := s.repairEvery - time.Since(lastRepair); wait > 0 {
				due = time.After(wait)
				continue
			}
			lastRepair = time.Now()
		case <-due:
			due, lastRepair = nil, time.Now()
		case <-s.again:
			reports, report = reportsAfterOutage, time.After(0)
			continue
		case <-report:
			report = nil
			if reports--; reports > 0 {
				report = time.After(reportAfterOutage)
			}
			if s.back != nil {
				s.back()
			}
		}
		// The controller takes one node at a time and keeps the newest for us in
		// its channel. It stops taking when ctx ends, with no way to be told so.
		taken := make(chan struct{})
		go func() {
			defer budget.From(ctx).Recover("make the node's status")
			defer close(taken)
			notify(s.node(time.Now(), false))
		}()
		select {
		case <-taken:
		case <-ctx.Done():
			return
		}
	}
}

// node is the whole object; without addresses for virtual-kubelet, which cannot
// patch them (nodeClient puts them in).
func (s *nodeStatus) node(now time.Time, addresses bool) *v1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := nodeObject(s.registration, s.machine, s.conditions, s.images, s.port, now)
	if !addresses {
		n.Status.Addresses = nil
	}
	return n
}

func (s *nodeStatus) addresses() []v1.NodeAddress {
	s.mu.Lock()
	defer s.mu.Unlock()
	return nodeAddresses(s.registration, s.machine)
}

// setCondition returns whether the condition's status changed.
func (s *nodeStatus) setCondition(c Condition) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.conditions, func(have Condition) bool { return have.Type == c.Type })
	if i < 0 {
		s.conditions = slices.Insert(s.conditions, len(s.conditions)-1, c)
		poke(s.changed)
		return true
	}
	before := s.conditions[i]
	if before == c {
		return false
	}
	s.conditions[i] = c
	poke(s.changed)
	return before.Status != c.Status
}

func (s *nodeStatus) setImages(images []v1.ContainerImage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !reflect.DeepEqual(s.images, images) {
		s.images = images
		poke(s.changed)
	}
}

func (s *nodeStatus) setMachine(m Machine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.KubeletVersion = s.machine.KubeletVersion
	if !reflect.DeepEqual(s.machine, m) {
		s.machine = m
		poke(s.changed)
	}
}

func (s *nodeStatus) setVersion(kubelet string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.machine.KubeletVersion = kubelet
}

// observe compares the server's node with ours: the node controller writes
// Unknown into conditions of a node that it has not heard of, and they must not
// stay so until the next regular report.
func (s *nodeStatus) observe(server *v1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, want := range s.conditions {
		i := slices.IndexFunc(server.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == want.Type })
		if i < 0 {
			poke(s.wrong)
			return
		}
		c := server.Status.Conditions[i]
		if c.Status != want.Status || c.Reason != want.Reason || c.Message != want.Message {
			poke(s.wrong)
			return
		}
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
