package evictionpolicy

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

func amount(t testing.TB, s string) pod.Amount {
	a, err := pod.ParseAmount(s)
	testutil.Must(t, err)
	return a
}

func at(seconds int) time.Time { return time.Unix(1_700_000_000+int64(seconds), 0) }

// The life of a node; at is in seconds.
func TestStep(t *testing.T) {
	more := amount(t, "20")
	thresholds := []pod.Threshold{
		{Signal: pod.NodeFsAvailable, Amount: amount(t, "10%")},
		{Signal: pod.NodeFsAvailable, Amount: amount(t, "15%"), Soft: true, Grace: 30 * time.Second},
		{Signal: pod.MemoryAvailable, Amount: amount(t, "100"), MinReclaim: &more},
	}
	var state State
	for _, step := range []struct {
		at           int
		memory, disk int64 // -1: not measured
		conditions   string
		due          string
	}{
		{0, 500, 500, "", ""},
		{10, 500, 140, "DiskPressure", ""},                          // the soft threshold is met, its grace period begins
		{30, 500, 140, "DiskPressure", ""},                          // 20 s of it
		{40, 500, 140, "DiskPressure", "soft"},                      // 30 s of it
		{50, 500, 90, "DiskPressure", "hard soft"},                  //
		{60, 500, 500, "DiskPressure", ""},                          // the cause has gone, the transition period begins
		{350, 500, 500, "", ""},                                     // the transition period is over
		{360, 99, 90, "DiskPressure MemoryPressure", "memory hard"}, // memory first
		{370, 110, 500, "DiskPressure MemoryPressure", "memory"},    // the minimum reclaim is not reached yet
		{380, 120, 500, "DiskPressure MemoryPressure", ""},          // now it is
		{390, 110, -1, "DiskPressure MemoryPressure", ""},           // and no longer counts
		{400, 100, -1, "DiskPressure MemoryPressure", ""},           // a signal that is not measured meets no threshold
		{1000, 100, 150, "", ""},
	} {
		seen := Observations{pod.MemoryAvailable: {step.memory, 1000}}
		if step.disk >= 0 {
			seen[pod.NodeFsAvailable] = Observation{step.disk, 1000}
		}
		var r Result
		state, r = Step(state, thresholds, seen, at(step.at), 5*time.Minute)
		var conditions, due []string
		for _, c := range r.Conditions {
			conditions = append(conditions, string(c))
		}
		for _, d := range r.Due {
			name := "hard"
			if d.Soft {
				name = "soft"
			} else if d.Signal == pod.MemoryAvailable {
				name = "memory"
			}
			due = append(due, name)
		}
		if got := strings.Join(conditions, " "); got != step.conditions {
			t.Errorf("at %d the conditions are %q, want %q", step.at, got, step.conditions)
		}
		if got := strings.Join(due, " "); got != step.due {
			t.Errorf("at %d %q are due, want %q", step.at, got, step.due)
		}
	}
}

// Without a transition period a condition ends with its cause, and is True until then.
func TestStepWithoutTransition(t *testing.T) {
	thresholds := []pod.Threshold{{Signal: pod.PIDAvailable, Amount: amount(t, "50%")}}
	state, r := Step(State{}, thresholds, Observations{pod.PIDAvailable: {1, 100}}, at(0), 0)
	if len(r.Conditions) != 1 || r.Conditions[0] != v1.NodePIDPressure || len(r.Due) != 1 {
		t.Errorf("%+v", r)
	}
	if _, r = Step(state, thresholds, Observations{pod.PIDAvailable: {90, 100}}, at(10), 0); len(r.Conditions)+len(r.Due) != 0 {
		t.Errorf("%+v", r)
	}
}

// aPod returns a pod with a priority and a request of its one container, app.
func aPod(name string, prio int32, resource string, q string) *v1.Pod {
	p := &v1.Pod{}
	p.Name, p.UID = name, types.UID(name)
	p.Spec.Priority = &prio
	p.Spec.Containers = []v1.Container{{Name: "app"}}
	if q != "" {
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceName(resource): quantityOf(q)}
	}
	return p
}

func quantityOf(s string) resource.Quantity { return resource.MustParse(s) }

func names(pods []*v1.Pod) string {
	var out []string
	for _, p := range pods {
		out = append(out, p.Name)
	}
	return strings.Join(out, " ")
}

func TestRankByMemory(t *testing.T) {
	has := func(mib int64) *Usage { return &Usage{Containers: []Container{{Name: "app", Memory: mib << 20}}} }
	pods := []*v1.Pod{
		aPod("within", 0, "memory", "500Mi"), aPod("important", 100, "memory", ""), aPod("small", 0, "memory", ""),
		aPod("large", 0, "memory", ""), aPod("beyond", 0, "memory", "100Mi"), aPod("unknown", 1000, "memory", "1Gi"),
		aPod("within-important", 7, "memory", "500Mi"),
	}
	usages := Usages{"within": has(400), "important": has(900), "small": has(10), "large": has(300), "beyond": has(150), "within-important": has(499)}
	if got := names(Rank(pods, usages, pod.MemoryAvailable, false)); got != "unknown large beyond small important within within-important" {
		t.Errorf("the order is %s", got)
	}
	if names(pods) != "within important small large beyond unknown within-important" {
		t.Error("Rank changed what it was given")
	}
}

// Which usage counts depends on which file system is short, and whether images have one of their
// own.
func TestRankByDisk(t *testing.T) {
	writes := &Usage{Containers: []Container{{Name: "app", RootFs: Disk{300, 1}}}}
	logs := &Usage{Containers: []Container{{Name: "app"}}, Logs: Disk{200, 2}}
	volumes := &Usage{Containers: []Container{{Name: "app"}}, Volumes: map[string]Disk{"v": {100, 50}}}
	pods := []*v1.Pod{aPod("logs", 0, "", ""), aPod("volumes", 0, "", ""), aPod("writes", 0, "", "")}
	usages := Usages{"writes": writes, "logs": logs, "volumes": volumes}
	for _, tc := range []struct {
		signal pod.Signal
		own    bool
		want   string
	}{
		{pod.NodeFsAvailable, false, "writes logs volumes"},
		{pod.ImageFsAvailable, false, "writes logs volumes"},
		{pod.NodeFsAvailable, true, "logs volumes writes"},
		{pod.ImageFsAvailable, true, "writes logs volumes"},
		{pod.NodeFsInodesFree, false, "volumes logs writes"},
		{pod.NodeFsInodesFree, true, "volumes logs writes"},
	} {
		if got := names(Rank(pods, usages, tc.signal, tc.own)); got != tc.want {
			t.Errorf("%s, images apart %v: %s, want %s", tc.signal, tc.own, got, tc.want)
		}
	}
	usages["logs"].Processes, usages["writes"].Processes = 5, 9
	pods[1].Spec.Priority = new(int32)
	*pods[1].Spec.Priority = -1
	if got := names(Rank(pods, usages, pod.PIDAvailable, false)); got != "volumes writes logs" {
		t.Errorf("by processes %s", got)
	}
}

func TestMessage(t *testing.T) {
	p := aPod("p", 0, "memory", "10Mi")
	u := &Usage{Containers: []Container{{Name: "app", Memory: 12 << 20, RootFs: Disk{5 << 10, 1}, Logs: Disk{3 << 10, 1}}, {Name: "gone", Memory: 1 << 40}}}
	seen := Observations{pod.MemoryAvailable: {Available: 90 << 20, Capacity: 1 << 30}, pod.NodeFsAvailable: {Available: 5 << 20, Capacity: 1 << 30},
		pod.NodeFsInodesFree: {Available: 4, Capacity: 1000}}
	for _, tc := range []struct{ signal, amount, want string }{
		{"memory.available", "100Mi", "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. Container app was using 12Mi, request is 10Mi, has larger consumption of memory. "},
		{"nodefs.available", "10%", "The node was low on resource: ephemeral-storage. Threshold quantity: 107374184, available: 5Mi. Container app was using 8Ki, request is 0, has larger consumption of ephemeral-storage. "},
		{"nodefs.inodesFree", "5%", "The node was low on resource: inodes. Threshold quantity: 50, available: 4. "},
		{"pid.available", "5", "The node was low on resource: pids. "},
	} {
		got, notes := Message(p, u, []pod.Threshold{{Signal: pod.Signal(tc.signal), Amount: amount(t, tc.amount)}}, seen)
		if got != tc.want {
			t.Errorf("%s: %q, want %q", tc.signal, got, tc.want)
		}
		if tc.signal == "memory.available" && (notes["offending_containers"] != "app" || notes["offending_containers_usage"] != "12Mi" || notes["starved_resource"] != "memory") {
			t.Errorf("the annotations are %v", notes)
		}
	}
}

func TestLimits(t *testing.T) {
	limit := quantityOf("1Ki")
	volume := aPod("volume", 0, "", "")
	volume.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: &limit}}}}
	container := aPod("container", 0, "", "")
	container.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceEphemeralStorage: limit}
	two := aPod("two", 0, "", "")
	two.Spec.Containers = []v1.Container{{Name: "app"}, {Name: "other"}}
	for i := range two.Spec.Containers {
		two.Spec.Containers[i].Resources.Limits = v1.ResourceList{v1.ResourceEphemeralStorage: limit}
	}
	memory := aPod("memory", 0, "", "")
	memory.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: &limit, Medium: v1.StorageMediumMemory}}}}
	for _, tc := range []struct {
		pod  *v1.Pod
		has  Usage
		own  bool
		want string
	}{
		{volume, Usage{Volumes: map[string]Disk{"v": {1025, 1}}}, false, `Usage of EmptyDir volume "v" exceeds the limit "1Ki". `},
		{volume, Usage{Volumes: map[string]Disk{"v": {1024, 1}}}, false, ""},
		{container, Usage{Logs: Disk{1025, 1}}, false, "Pod ephemeral local storage usage exceeds the total limit of containers 1Ki. "},
		{two, Usage{Logs: Disk{1100, 1}, Containers: []Container{{Name: "app", Logs: Disk{1100, 1}}}}, false, `Container app exceeded its local ephemeral storage limit "1Ki". `},
		{two, Usage{Containers: []Container{{Name: "app", RootFs: Disk{1100, 1}}}}, false, `Container app exceeded its local ephemeral storage limit "1Ki". `},
		{two, Usage{Containers: []Container{{Name: "app", RootFs: Disk{1100, 1}}}}, true, ""},
		{two, Usage{Containers: []Container{{Name: "app", RootFs: Disk{1000, 1}}}}, false, ""},
	} {
		limit, got := Exceeded(tc.pod, &tc.has, tc.own)
		if got != tc.want {
			t.Errorf("%s with %+v: %q, want %q", tc.pod.Name, tc.has, got, tc.want)
		}
		want := Limit("")
		switch {
		case strings.HasPrefix(tc.want, "Usage of EmptyDir"):
			want = EmptyDirLimit
		case strings.HasPrefix(tc.want, "Pod"):
			want = PodLimit
		case tc.want != "":
			want = ContainerLimit
		}
		if limit != want {
			t.Errorf("%s with %+v: limit %q, want %q", tc.pod.Name, tc.has, limit, want)
		}
	}
	var limited []string
	for _, p := range []*v1.Pod{volume, container, two, memory, aPod("plain", 0, "", "")} {
		if Limited(p) {
			limited = append(limited, p.Name)
		}
	}
	if !slices.Equal(limited, []string{"volume", "container", "two"}) {
		t.Errorf("with limits of their own: %v", limited)
	}
}
