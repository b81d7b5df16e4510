package gcpolicy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/bowline-k8s/bowline/test/corpus"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const owner = "cluster/node"

func ago(d time.Duration) time.Time { return now.Add(-d) }

// input is a sweep's input in the middle of a node's life.
func input() Input {
	return Input{
		Now: now, Owner: owner, SourcesSeen: true, MinAge: time.Minute,
		Known: map[types.UID]bool{}, Records: map[types.UID]bool{}, LogsRoot: "/var/log/pods",
	}
}

func ids(r Removals) (containers, sandboxes []string) {
	for _, c := range r.Containers {
		containers = append(containers, c.ID)
	}
	for _, s := range r.Sandboxes {
		sandboxes = append(sandboxes, s.ID)
	}
	return containers, sandboxes
}

func TestRuntime(t *testing.T) {
	box := func(id string, uid types.UID, state State, age time.Duration) Sandbox {
		return Sandbox{ID: id, UID: uid, Owner: owner, State: state, CreatedAt: ago(age)}
	}
	con := func(id, name string, uid types.UID, box string, state State, age time.Duration) Container {
		return Container{ID: id, Name: name, UID: uid, Owner: owner, SandboxID: box, State: state, CreatedAt: ago(age)}
	}
	for name, c := range map[string]struct {
		change     func(*Input)
		containers []string
		sandboxes  []string
	}{
		"a known pod keeps what runs and the newest that ended, of each name": {
			change: func(in *Input) {
				in.Known["u"] = true
				in.Sandboxes = []Sandbox{box("s", "u", Running, time.Hour)}
				in.Containers = []Container{
					con("a0", "a", "u", "s", Dead, 3*time.Hour), con("a1", "a", "u", "s", Dead, 2*time.Hour),
					con("b0", "b", "u", "s", Dead, 3*time.Hour), con("b1", "b", "u", "s", Dead, 2*time.Hour),
					con("b2", "b", "u", "s", Running, time.Hour),
				}
			},
			containers: []string{"a0", "b0"},
		},
		"a known pod keeps its last exit while the next instance is made": {
			change: func(in *Input) {
				in.Known["u"] = true
				in.Sandboxes = []Sandbox{box("s", "u", Running, time.Hour)}
				in.Containers = []Container{
					con("a0", "a", "u", "s", Dead, 3*time.Hour), con("a1", "a", "u", "s", Dead, 2*time.Hour), con("a2", "a", "u", "s", Created, time.Second),
					con("b0", "b", "u", "s", Created, 3*time.Hour), con("b1", "b", "u", "s", Dead, 2*time.Hour), con("b2", "b", "u", "s", Created, time.Hour),
				}
			},
			containers: []string{"a0", "b0"},
		},
		"an absent pod's container that was never started goes": {
			change: func(in *Input) {
				in.Sandboxes = []Sandbox{box("s", "u", Dead, time.Hour)}
				in.Containers = []Container{con("a", "a", "u", "s", Created, time.Hour)}
			},
			containers: []string{"a"}, sandboxes: []string{"s"},
		},
		"a known pod keeps its newest sandbox and those with containers": {
			change: func(in *Input) {
				in.Known["u"] = true
				in.Sandboxes = []Sandbox{
					box("s0", "u", Dead, 3*time.Hour), box("s1", "u", Dead, 2*time.Hour), box("s2", "u", Dead, time.Hour),
				}
				in.Containers = []Container{con("a0", "a", "u", "s1", Dead, 2*time.Hour)}
			},
			sandboxes: []string{"s0"},
		},
		"a sandbox goes with its last container": {
			change: func(in *Input) {
				in.Known["u"] = true
				in.Sandboxes = []Sandbox{box("s0", "u", Dead, 3*time.Hour), box("s1", "u", Running, time.Hour)}
				in.Containers = []Container{
					con("a0", "a", "u", "s0", Dead, 3*time.Hour), con("a1", "a", "u", "s1", Dead, time.Hour),
				}
			},
			containers: []string{"a0"}, sandboxes: []string{"s0"},
		},
		"an absent pod loses all that is dead": {
			change: func(in *Input) {
				in.Sandboxes = []Sandbox{box("s", "u", Dead, time.Hour)}
				in.Containers = []Container{con("a0", "a", "u", "s", Dead, time.Hour), con("a1", "a", "u", "s", Dead, time.Hour)}
			},
			containers: []string{"a0", "a1"}, sandboxes: []string{"s"},
		},
		"what runs stays, and its sandbox": {
			change: func(in *Input) {
				in.Sandboxes = []Sandbox{box("s", "u", Dead, time.Hour), box("r", "v", Running, time.Hour)}
				in.Containers = []Container{con("a", "a", "u", "s", Running, time.Hour), con("b", "b", "u", "s", Dead, time.Hour)}
			},
			containers: []string{"b"},
		},
		"what the runtime lost may run": {
			change: func(in *Input) {
				in.Sandboxes = []Sandbox{box("s", "u", Dead, time.Hour)}
				in.Containers = []Container{con("a", "a", "u", "s", Unknown, time.Hour)}
			},
		},
		"nothing of an unknown pod goes before the sources were seen": {
			change: func(in *Input) {
				in.SourcesSeen = false
				in.Sandboxes = []Sandbox{box("s", "u", Dead, time.Hour)}
				in.Containers = []Container{con("a", "a", "u", "s", Dead, time.Hour)}
			},
		},
		"the young of an unknown pod stay": {
			change: func(in *Input) {
				in.Sandboxes = []Sandbox{box("s", "u", Dead, 59*time.Second), box("t", "v", Dead, time.Minute)}
				in.Containers = []Container{con("a", "a", "w", "x", Dead, 59*time.Second), con("b", "b", "w", "x", Dead, time.Minute)}
			},
			containers: []string{"b"}, sandboxes: []string{"t"},
		},
		"foreign ones stay": {
			change: func(in *Input) {
				s := box("s", "u", Dead, time.Hour)
				s.Owner = ""
				c := con("a", "a", "u", "s", Dead, time.Hour)
				c.Owner = "cluster/other"
				in.Sandboxes, in.Containers = []Sandbox{s}, []Container{c}
			},
		},
		"without a stamp of ours nothing is ours": {
			change: func(in *Input) {
				in.Owner = ""
				s := box("s", "u", Dead, time.Hour)
				s.Owner = ""
				in.Sandboxes = []Sandbox{s}
			},
		},
		"two of one age: the same one is kept each time": {
			change: func(in *Input) {
				in.Known["u"] = true
				in.Containers = []Container{con("a1", "a", "u", "s", Dead, time.Hour), con("a0", "a", "u", "s", Dead, time.Hour)}
			},
			containers: []string{"a0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := input()
			c.change(&in)
			containers, sandboxes := ids(What(in))
			if !slices.Equal(containers, c.containers) || !slices.Equal(sandboxes, c.sandboxes) {
				t.Errorf("containers %v, sandboxes %v; want %v, %v", containers, sandboxes, c.containers, c.sandboxes)
			}
		})
	}
}

func TestForeignAreCounted(t *testing.T) {
	in := input()
	in.Sandboxes = []Sandbox{{ID: "s", UID: "u"}, {ID: "t", UID: "u", Owner: owner, State: Running}}
	in.Containers = []Container{{ID: "c", UID: "u", Owner: "x"}}
	if got := What(in).Foreign; got != 2 {
		t.Errorf("foreign = %d", got)
	}
}

// leftovers adds everything that a pod can leave on the host.
func leftovers(in *Input, uid types.UID) {
	in.PodDirs = append(in.PodDirs, uid)
	in.LogDirs = append(in.LogDirs, "ns_p_"+string(uid))
	in.Links = append(in.Links, Link{Name: "p_ns_c-" + string(uid) + "id.log", Target: "/var/log/pods/ns_p_" + string(uid) + "/c/0.log"})
	in.Cgroups = append(in.Cgroups, Cgroup{Path: "/kubepods/pod" + string(uid), UID: uid})
}

func TestOnHost(t *testing.T) {
	all := func(r Removals) [5]int {
		return [5]int{len(r.PodDirs), len(r.LogDirs), len(r.Links), len(r.Cgroups), len(r.Records)}
	}
	for name, c := range map[string]struct {
		change func(*Input)
		want   [5]int // pod dirs, log dirs, links, cgroups, records
	}{
		"of an absent pod all goes, the record stays until nothing is seen": {
			change: func(in *Input) { in.Records["u"] = true; leftovers(in, "u") },
			want:   [5]int{1, 1, 1, 1, 0},
		},
		"then the record": {
			change: func(in *Input) { in.Records["u"] = true },
			want:   [5]int{0, 0, 0, 0, 1},
		},
		"but not of one that lived when the look began": {
			change: func(in *Input) { in.Records["u"] = true; in.Lived = map[types.UID]bool{"u": true} },
		},
		"without a record nothing": {
			change: func(in *Input) { leftovers(in, "u") },
		},
		"of a known pod only links of containers that are gone": {
			change: func(in *Input) { in.Records["u"], in.Known["u"] = true, true; leftovers(in, "u") },
			want:   [5]int{0, 0, 1, 0, 0},
		},
		"of a known pod no link of a container that is there": {
			change: func(in *Input) {
				in.Records["u"], in.Known["u"] = true, true
				leftovers(in, "u")
				in.Containers = []Container{{ID: "uid", Name: "c", UID: "u", Owner: owner, CreatedAt: ago(time.Hour)}}
			},
		},
		"before the sources were seen nothing": {
			change: func(in *Input) { in.SourcesSeen = false; in.Records["u"] = true; leftovers(in, "u") },
		},
		"while a container runs nothing": {
			change: func(in *Input) {
				in.Records["u"] = true
				leftovers(in, "u")
				in.Containers = []Container{{ID: "uid", Name: "c", UID: "u", Owner: owner, State: Running}}
			},
		},
		"while a foreign sandbox has the UID nothing but links": {
			change: func(in *Input) {
				in.Records["u"] = true
				leftovers(in, "u")
				in.Sandboxes = []Sandbox{{ID: "s", UID: "u"}}
			},
			want: [5]int{0, 0, 1, 0, 0},
		},
		"links elsewhere and names of another form are not ours": {
			change: func(in *Input) {
				in.Records["u"] = true
				in.LogDirs = []string{"u", "ns_u", "_p_u", "a_b_c_u", "ns_p_"}
				in.Links = []Link{
					{Name: "p_ns_c-id.log", Target: "/var/lib/docker/ns_p_u/c/0.log"},
					{Name: "p_ns_c-id.log", Target: "/var/log/pods-of-others/ns_p_u/c/0.log"},
					{Name: "p_ns_c-id.log", Target: "/var/log/pods/../x/ns_p_u/0.log"},
					{Name: "notes.log", Target: "/var/log/pods/ns_p_u/c/0.log"},
					{Name: "p_ns_c-id", Target: "/var/log/pods/ns_p_u/c/0.log"},
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := input()
			c.change(&in)
			if got := all(What(in)); got != c.want {
				t.Errorf("pod dirs, log dirs, links, cgroups, records = %v, want %v", got, c.want)
			}
		})
	}
}

func TestNames(t *testing.T) {
	const uid = "0b6c1d1e-3f5a-4a7e-9e2d-0d9f4f5c6a7b"
	for name, want := range map[string]types.UID{
		"pod" + uid: uid,
		"kubepods-burstable-pod0b6c1d1e_3f5a_4a7e_9e2d_0d9f4f5c6a7b.slice":  uid,
		"kubepods-pod0b6c1d1e_3f5a_4a7e_9e2d_0d9f4f5c6a7b.slice":            uid,
		"kubepods-besteffort-pod0b6c1d1e_3f5a_4a7e_9e2d_0d9f4f5c6a7b.slice": uid,
		"burstable":                "",
		"kubepods-burstable.slice": "",
		"user-pod1.slice":          "",
		"system.slice":             "",
	} {
		if got := CgroupUID(name); got != want {
			t.Errorf("CgroupUID(%s) = %q, want %q", name, got, want)
		}
	}
	if got := LogDirUID("kube-system_coredns-0_" + uid); got != uid {
		t.Errorf("LogDirUID = %q", got)
	}
	if got := LinkContainerID("web-0_ns_main-app-abc123.log"); got != "abc123" {
		t.Errorf("LinkContainerID = %q", got)
	}
}

// world draws any state of a host, from so few UIDs that they collide.
func world(t *rapid.T) Input {
	in := input()
	in.SourcesSeen = rapid.Bool().Draw(t, "seen")
	in.Owner = rapid.SampledFrom([]string{owner, owner, owner, ""}).Draw(t, "owner")
	uid := func() types.UID {
		return types.UID(rapid.SampledFrom([]string{"", "u0", "u1", "u2", "u3"}).Draw(t, "uid"))
	}
	stamp := func() string {
		return rapid.SampledFrom([]string{owner, owner, "", "cluster/other"}).Draw(t, "stamp")
	}
	state := func() State { return rapid.SampledFrom([]State{Dead, Created, Running, Unknown}).Draw(t, "state") }
	boxState := func() State { return rapid.SampledFrom([]State{Dead, Running, Unknown}).Draw(t, "state") }
	created := func() time.Time { return ago(time.Duration(rapid.IntRange(0, 200).Draw(t, "age")) * time.Second) }
	n := func(max int) int { return rapid.IntRange(0, max).Draw(t, "n") }
	for range n(3) {
		in.Known[uid()] = true
	}
	for range n(4) {
		in.Records[uid()] = true
	}
	in.Lived = map[types.UID]bool{}
	for range n(2) {
		in.Lived[uid()] = true
	}
	for i := range n(5) {
		in.Sandboxes = append(in.Sandboxes, Sandbox{ID: fmt.Sprint("s", i), UID: uid(), Owner: stamp(), State: boxState(), CreatedAt: created()})
	}
	for i := range n(6) {
		in.Containers = append(in.Containers, Container{
			ID: fmt.Sprint("c", i), Name: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "name"), UID: uid(), Owner: stamp(),
			SandboxID: fmt.Sprint("s", n(4)), State: state(), CreatedAt: created(),
		})
	}
	for range n(3) {
		leftovers(&in, uid())
	}
	for i := range n(3) {
		in.Links = append(in.Links, Link{Name: fmt.Sprintf("p_ns_c-c%d.log", i), Target: "/var/log/pods/ns_p_" + string(uid()) + "/c/0.log"})
	}
	return in
}

// violation describes how a choice breaks the rules, or is empty. It follows the rules in the
// simplest way, independently of the code.
func violation(in Input, r Removals) string {
	running := map[types.UID]bool{}
	foreign := map[types.UID]bool{}
	chosen := map[string]bool{}
	for _, c := range r.Containers {
		chosen[c.ID] = true
	}
	for _, s := range in.Sandboxes {
		running[s.UID] = running[s.UID] || s.State != Dead
		foreign[s.UID] = foreign[s.UID] || s.Owner != owner
	}
	for _, c := range in.Containers {
		running[c.UID] = running[c.UID] || c.State == Running || c.State == Unknown
		foreign[c.UID] = foreign[c.UID] || c.Owner != owner
	}
	unknown := func(uid types.UID) bool { return !in.Known[uid] }
	for _, c := range r.Containers {
		switch {
		case c.Owner != owner || in.Owner != owner:
			return "a foreign container: " + c.ID
		case c.State == Running || c.State == Unknown:
			return "a live container: " + c.ID
		case unknown(c.UID) && !in.SourcesSeen && onlyOne(in, c):
			return "the last container of an unseen pod: " + c.ID
		}
		newest, lastExit := true, c.State == Dead
		for _, o := range in.Containers {
			if o.UID == c.UID && o.Name == c.Name && !chosen[o.ID] {
				newest = false
				lastExit = lastExit && o.State != Dead
			}
		}
		if newest && in.Known[c.UID] {
			return "every container of a name of a known pod: " + c.ID
		}
		if lastExit && in.Known[c.UID] && !in.Finished[c.UID] {
			return "the last exit of a name of a known pod: " + c.ID
		}
	}
	for _, s := range r.Sandboxes {
		switch {
		case s.Owner != owner || in.Owner != owner:
			return "a foreign sandbox: " + s.ID
		case s.State != Dead:
			return "a live sandbox: " + s.ID
		}
		for _, c := range in.Containers {
			if c.SandboxID == s.ID && !chosen[c.ID] {
				return "a sandbox with a container in it: " + s.ID
			}
		}
	}
	gone := func(uid types.UID) string {
		switch {
		case in.Owner != owner:
			return "without knowing who we are"
		case !in.Records[uid]:
			return "of a pod that we never had"
		case in.Known[uid]:
			return "of a known pod"
		case !in.SourcesSeen:
			return "before the sources were seen"
		case running[uid]:
			return "of a running pod"
		case foreign[uid]:
			return "of a pod that belongs to another"
		}
		return ""
	}
	for _, uid := range r.PodDirs {
		if why := gone(uid); why != "" {
			return "pod directory " + why
		}
	}
	for _, name := range r.LogDirs {
		if why := gone(LogDirUID(name)); why != "" {
			return "log directory " + why
		}
	}
	for _, c := range r.Cgroups {
		if why := gone(c.UID); why != "" {
			return "cgroup " + why
		}
	}
	for _, uid := range r.Records {
		if why := gone(uid); why != "" {
			return "record " + why
		}
		if in.Lived[uid] {
			return "record of a pod that lived when the look began"
		}
	}
	for _, name := range r.Links {
		for _, c := range in.Containers {
			if LinkContainerID(name) == c.ID && !chosen[c.ID] {
				return "link of a container that stays: " + name
			}
		}
	}
	return ""
}

// onlyOne reports whether the runtime has no other instance of the container.
func onlyOne(in Input, c Container) bool {
	for _, o := range in.Containers {
		if o.UID == c.UID && o.Name == c.Name && o.ID != c.ID {
			return false
		}
	}
	return true
}

func TestNeverForeignNeverAlive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := world(t)
		if v := violation(in, What(in)); v != "" {
			t.Fatalf("%s\n%+v", v, in)
		}
	})
}

// TestItConverges: the next sweep keeps what one sweep left, and at last nothing of ours remains of
// pods that are gone for good.
func TestItConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := world(t)
		in.Owner, in.SourcesSeen = owner, true
		in.Known = map[types.UID]bool{}
		for i := range in.Sandboxes {
			in.Sandboxes[i].State, in.Sandboxes[i].Owner, in.Sandboxes[i].CreatedAt = Dead, owner, ago(time.Hour)
		}
		for i := range in.Containers {
			in.Containers[i].State, in.Containers[i].Owner, in.Containers[i].CreatedAt = Dead, owner, ago(time.Hour)
		}
		delete(in.Records, "")
		in.Lived = nil // no pod lives when the next look begins
		// What has no pod UID is not ours to collect.
		in.Sandboxes = slices.DeleteFunc(in.Sandboxes, func(s Sandbox) bool { return s.UID == "" })
		in.Containers = slices.DeleteFunc(in.Containers, func(c Container) bool { return c.UID == "" })
		for range 2 {
			in = apply(in, What(in))
		}
		for uid := range in.Records {
			t.Fatalf("record of %s stays: %+v", uid, in)
		}
		for _, c := range in.Containers {
			t.Fatalf("container stays: %+v", c)
		}
	})
}

func apply(in Input, r Removals) Input {
	drop := func(names ...string) func(string) bool {
		return func(s string) bool { return slices.Contains(names, s) }
	}
	containers, sandboxes := ids(r)
	inC, inS := drop(containers...), drop(sandboxes...)
	in.Containers = slices.DeleteFunc(slices.Clone(in.Containers), func(c Container) bool { return inC(c.ID) })
	in.Sandboxes = slices.DeleteFunc(slices.Clone(in.Sandboxes), func(s Sandbox) bool { return inS(s.ID) })
	in.PodDirs = slices.DeleteFunc(slices.Clone(in.PodDirs), func(u types.UID) bool { return slices.Contains(r.PodDirs, u) })
	in.LogDirs = slices.DeleteFunc(slices.Clone(in.LogDirs), drop(r.LogDirs...))
	inL := drop(r.Links...)
	in.Links = slices.DeleteFunc(slices.Clone(in.Links), func(l Link) bool { return inL(l.Name) })
	in.Cgroups = slices.DeleteFunc(slices.Clone(in.Cgroups), func(c Cgroup) bool { return slices.Contains(r.Cgroups, c) })
	for _, uid := range r.Records {
		delete(in.Records, uid)
	}
	return in
}

// TestTheRulesBite breaks the choice on purpose, once per rule. The check of
// TestNeverForeignNeverAlive must detect each.
func TestTheRulesBite(t *testing.T) {
	mutants := map[string]func(in Input) Removals{
		"ignores stamps": unstamp,
		"takes the lost for dead": func(in Input) Removals {
			in.Containers = slices.Clone(in.Containers)
			states := map[string]State{}
			for i := range in.Containers {
				states[in.Containers[i].ID] = in.Containers[i].State
				if in.Containers[i].State == Unknown {
					in.Containers[i].State = Dead
				}
			}
			r := What(in)
			for i := range r.Containers {
				r.Containers[i].State = states[r.Containers[i].ID]
			}
			return r
		},
		"does not wait for sources": func(in Input) Removals { in.SourcesSeen = true; return What(in) },
		"forgets known pods":        func(in Input) Removals { in.Known = nil; return What(in) },
		"forgets who lived":         func(in Input) Removals { in.Lived = nil; return What(in) },
		"needs no record": func(in Input) Removals {
			in.Records = map[types.UID]bool{"u0": true, "u1": true, "u2": true, "u3": true}
			return What(in)
		},
		"does not look at the runtime": func(in Input) Removals { in.Sandboxes, in.Containers = nil, nil; return What(in) },
	}
	for name, mutant := range mutants {
		t.Run(name, func(t *testing.T) {
			gen := rapid.Custom(world)
			for seed := range 5000 {
				in := gen.Example(seed)
				copied := in
				copied.Containers = slices.Clone(in.Containers)
				if violation(in, mutant(copied)) != "" {
					return
				}
			}
			t.Error("the check does not see this mutant")
		})
	}
}

// unstamp runs the choice as if everything were ours, then restores the true stamps.
func unstamp(in Input) Removals {
	in.Sandboxes, in.Containers = slices.Clone(in.Sandboxes), slices.Clone(in.Containers)
	stamps := map[string]string{}
	for i := range in.Containers {
		stamps[in.Containers[i].ID] = in.Containers[i].Owner
		in.Containers[i].Owner = owner
	}
	for i := range in.Sandboxes {
		stamps[in.Sandboxes[i].ID] = in.Sandboxes[i].Owner
		in.Sandboxes[i].Owner = owner
	}
	r := What(in)
	for i := range r.Containers {
		r.Containers[i].Owner = stamps[r.Containers[i].ID]
	}
	for i := range r.Sandboxes {
		r.Sandboxes[i].Owner = stamps[r.Sandboxes[i].ID]
	}
	return r
}

// FuzzNames reads any name in the host's directories of logs, links and cgroups.
func FuzzNames(f *testing.F) {
	for _, name := range []string{"default_web-0_1234", "web-0_default_app-0123.log", "pod1-2", "kubepods-burstable-pod1_2.slice", "-pod.slice", "_.log"} {
		f.Add(name)
	}
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, name string) {
		if uid := LogDirUID(name); !strings.HasSuffix(name, string(uid)) {
			t.Errorf("the log directory %q is of %q", name, uid)
		}
		if id := LinkContainerID(name); !strings.Contains(name, id) || strings.Contains(id, "-") {
			t.Errorf("the link %q is of %q", name, id)
		}
		if uid := CgroupUID(name); len(uid) >= max(len(name), 1) {
			t.Errorf("the cgroup %q is of %q", name, uid)
		}
	})
}
