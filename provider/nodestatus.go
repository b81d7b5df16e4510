package provider

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/notify"
)

// nodeStatus holds the content of the node object, and passes full nodes to virtual-kubelet's
// NodeController. It is the controller's NodeProvider.
type nodeStatus struct {
	registration Registration
	port         int32
	repairEvery  time.Duration
	onReconnect  func() // called at each report after an outage; may be nil

	mu         sync.Mutex
	info       NodeInfo
	conditions []Condition // Ready last, as older controllers expect
	images     []v1.ContainerImage
	// replaced holds what each condition was before its last change, until the watch shows the new
	// value: the zero Condition if there was none.
	replaced map[v1.NodeConditionType]Condition

	changed notify.Signal // something above has changed, or the object is gone
	wrong   notify.Signal // the server has other conditions than ours
	again   notify.Signal // the server answers again after an outage
	senders sync.WaitGroup
}

// NotReported is the message of Ready before the first SetReady.
const NotReported = "the container runtime has not reported its status yet"

func newNodeStatus(c Config) *nodeStatus {
	s := &nodeStatus{
		registration: c.Registration,
		info:         c.Info,
		repairEvery:  c.RepairInterval,
		onReconnect:  c.OnReconnect,
		changed:      notify.New(),
		wrong:        notify.New(),
		again:        notify.New(),
		replaced:     map[v1.NodeConditionType]Condition{},
		conditions: []Condition{
			{v1.NodeMemoryPressure, v1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"},
			{v1.NodeDiskPressure, v1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"},
			{v1.NodePIDPressure, v1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available"},
			{v1.NodeReady, v1.ConditionFalse, "KubeletNotReady", NotReported},
		},
	}
	s.registration.instance = c.Instance
	if c.Server != nil {
		s.port = c.Server.Port()
	}
	return s
}

// Ping never fails. A failing ping would stop status and lease without a log, and the node would
// become Unknown without a cause. Conditions report problems instead.
func (s *nodeStatus) Ping(context.Context) error { return nil }

// NotifyNodeStatus starts the only sender. The callback blocks while its channel of capacity one is
// full, so a goroutine of its own calls it.
func (s *nodeStatus) NotifyNodeStatus(ctx context.Context, notify func(*v1.Node)) {
	s.senders.Go(func() {
		defer budget.From(ctx).Recover("write the node's status")
		s.send(ctx, notify)
	})
}

// After an outage, the node controller has set the node to Unknown, or is about to, and the watch
// that would show it may be in client-go's back-off of up to a minute. So the status is reported
// unprompted for that long.
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
			if s.onReconnect != nil {
				s.onReconnect()
			}
		}
		// The controller takes one node at a time and keeps the newest in its channel. It stops
		// taking when ctx ends, without notice.
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

// node builds the whole object. For virtual-kubelet it has no addresses, because virtual-kubelet
// cannot patch them (nodeClient adds them).
func (s *nodeStatus) node(now time.Time, addresses bool) *v1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := nodeObject(s.registration, s.info, s.conditions, s.images, s.port, now)
	if !addresses {
		n.Status.Addresses = nil
	}
	return n
}

func (s *nodeStatus) addresses() []v1.NodeAddress {
	s.mu.Lock()
	defer s.mu.Unlock()
	return nodeAddresses(s.registration, s.info)
}

// setCondition reports whether the condition's status changed.
func (s *nodeStatus) setCondition(c Condition) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.conditions, func(have Condition) bool { return have.Type == c.Type })
	if i < 0 {
		s.conditions = slices.Insert(s.conditions, len(s.conditions)-1, c)
		s.replaced[c.Type] = Condition{}
		s.changed.Send()
		return true
	}
	before := s.conditions[i]
	if before == c {
		return false
	}
	s.conditions[i], s.replaced[c.Type] = c, before
	s.changed.Send()
	return before.Status != c.Status
}

func (s *nodeStatus) setImages(images []v1.ContainerImage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !reflect.DeepEqual(s.images, images) {
		s.images = images
		s.changed.Send()
	}
}

func (s *nodeStatus) setInfo(m NodeInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.KubeletVersion = s.info.KubeletVersion
	if !reflect.DeepEqual(s.info, m) {
		s.info = m
		s.changed.Send()
	}
}

func (s *nodeStatus) setVersion(kubelet string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.info.KubeletVersion = kubelet
}

// observe compares the server's node with ours. The node controller sets the conditions of a node
// that it has not heard from to Unknown; that must be corrected before the next regular report.
func (s *nodeStatus) observe(server *v1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	shown := make(map[v1.NodeConditionType]Condition, len(server.Status.Conditions))
	for _, c := range server.Status.Conditions {
		shown[c.Type] = Condition{c.Type, c.Status, c.Reason, c.Message}
	}
	for _, want := range s.conditions {
		have := shown[want.Type]
		old, changed := s.replaced[want.Type]
		switch {
		case have == want:
			delete(s.replaced, want.Type)
		case changed && have == old: // the watch is late
		default:
			s.wrong.Send()
			return
		}
	}
}

// reportFailed retries a report that could not be written, after the repair interval at the latest.
func (s *nodeStatus) reportFailed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.replaced) // what the server shows is not late
	s.wrong.Send()
}
