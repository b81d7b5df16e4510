// Package gcpolicy decides what on a host is garbage. The package is pure: its input are all
// lists of the host and the runtime, its output the objects to remove; it removes nothing.
//
// Two rules come first. A foreign object is never chosen: a sandbox or container without our stamp,
// and a directory, link or cgroup of a pod without our record. What may be alive is never chosen:
// what runs, what belongs to a pod that the loop knows (except its surplus dead containers and
// sandboxes), and anything of an unknown pod before every source of pods has been seen.
package gcpolicy

import (
	"sort"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// State is the state of a container or a sandbox.
type State int

const (
	Dead    State = iota // exited; a sandbox that is not ready
	Created              // a container that was created and has not started
	Running              // running; a sandbox that is ready
	Unknown              // the runtime has lost it: it may still run
)

// Sandbox is a sandbox as the runtime lists it.
type Sandbox struct {
	ID        string
	UID       types.UID // of its pod, from the label
	Owner     string    // the stamp; empty if there is none
	State     State
	CreatedAt time.Time // by our clock
}

// Container is a container as the runtime lists it.
type Container struct {
	ID        string
	Name      string
	UID       types.UID
	Owner     string
	SandboxID string
	State     State
	CreatedAt time.Time // by our clock
	LogPath   string    // on the host, absolute; empty if not known
}

// Link is a symbolic link in /var/log/containers.
type Link struct {
	Name   string // <pod>_<namespace>_<container>-<container ID>.log
	Target string // as stored in the link, absolute
}

// Cgroup is the cgroup of a pod.
type Cgroup struct {
	Path string // named as in host.Cgroups
	UID  types.UID
}

// Input has all lists. The sweeper reads Records and Lived first, then the files on the host,
// then the runtime, then Known. In this order, nothing that a worker was just creating is missing
// from a later list.
type Input struct {
	Now time.Time
	// Owner is our stamp; while it is empty nothing is chosen.
	Owner string
	// SourcesSeen is set once every source of pods has been seen.
	SourcesSeen bool
	// MinAge is the age below which sandboxes and containers of unknown pods stay.
	MinAge time.Duration
	// Known are the pods that a worker or the API still has.
	Known map[types.UID]bool
	// Finished are the pods whose newest dead container goes too; only set while the disk is short.
	Finished map[types.UID]bool
	// Records are the pods that we recorded as ours on the host.
	Records map[types.UID]bool
	// Lived are the pods among Records that a worker or the API had, or may have had, when the look
	// began. Such a pod may have created things after their directory was listed, and be gone by
	// the end of the look, which takes half a minute over a slow link. Its record stays for the
	// next look; without it nothing would ever collect them.
	Lived map[types.UID]bool

	Sandboxes  []Sandbox
	Containers []Container
	LogsRoot   string   // /var/log/pods
	LogDirs    []string // names in it: <namespace>_<name>_<uid>
	Links      []Link
	PodDirs    []types.UID
	Cgroups    []Cgroup
}

// Removals are what may go, in the order of the fields. A sandbox is removed only if all its
// containers in Containers were.
type Removals struct {
	Containers []Container
	Sandboxes  []Sandbox
	PodDirs    []types.UID
	LogDirs    []string // names in LogsRoot
	Links      []string // names
	Cgroups    []Cgroup
	// Records are of pods of which nothing else is left.
	Records []types.UID
	// Foreign counts the sandboxes and containers that are not ours.
	Foreign int
}

// Empty reports whether there is nothing to remove.
func (r Removals) Empty() bool {
	return len(r.Containers)+len(r.Sandboxes)+len(r.PodDirs)+len(r.LogDirs)+len(r.Links)+len(r.Cgroups)+len(r.Records) == 0
}

// What chooses the garbage.
func What(in Input) Removals {
	var out Removals
	for i := range in.Sandboxes {
		if !in.stamped(in.Sandboxes[i].Owner) {
			out.Foreign++
		}
	}
	for i := range in.Containers {
		if !in.stamped(in.Containers[i].Owner) {
			out.Foreign++
		}
	}
	if in.Owner == "" {
		return out
	}
	out.Containers = containers(in)
	out.Sandboxes = sandboxes(in, out.Containers)
	onHost(in, &out)
	return out
}

func (in *Input) stamped(owner string) bool { return in.Owner != "" && owner == in.Owner }

// absent reports whether certainly no worker and no source has the pod.
func (in *Input) absent(uid types.UID) bool {
	return uid != "" && in.SourcesSeen && !in.Known[uid]
}

// aged reports whether the thing is old enough that its pod would have become known.
func (in *Input) aged(created time.Time) bool { return !created.After(in.Now.Add(-in.MinAge)) }

// containers chooses the dead containers of absent pods, and of a known pod all dead ones but the
// newest of each name: its log and exit code are the last state, even while a later instance is
// created or runs. A container that was created and never started goes once a later instance
// exists.
func containers(in Input) []Container {
	type unit struct {
		uid  types.UID
		name string
	}
	exited, newest := map[unit]*Container{}, map[unit]*Container{}
	for i := range in.Containers {
		c := &in.Containers[i]
		u := unit{c.UID, c.Name}
		if have := newest[u]; have == nil || newer(c, have) {
			newest[u] = c
		}
		if have := exited[u]; c.State == Dead && (have == nil || newer(c, have)) {
			exited[u] = c
		}
	}
	var list []Container
	for i := range in.Containers {
		c := &in.Containers[i]
		if !in.stamped(c.Owner) || c.State != Dead && c.State != Created {
			continue
		}
		stays := exited
		if c.State == Created {
			stays = newest
		}
		switch {
		case in.absent(c.UID):
			if in.aged(c.CreatedAt) {
				list = append(list, *c)
			}
		case stays[unit{c.UID, c.Name}] != c, in.Finished[c.UID]:
			list = append(list, *c)
		}
	}
	return list
}

// newer orders two instances of one container. The ID breaks a tie, so that the same one is kept
// each time.
func newer(a, b *Container) bool {
	if !a.CreatedAt.Equal(b.CreatedAt) {
		return a.CreatedAt.After(b.CreatedAt)
	}
	return a.ID > b.ID
}

// sandboxes chooses the sandboxes that are not ready and hold no container that stays: all of an
// absent pod, all but the newest of a known one.
func sandboxes(in Input, going []Container) []Sandbox {
	goes := make(map[string]bool, len(going))
	for i := range going {
		goes[going[i].ID] = true
	}
	holds := map[string]bool{}
	for i := range in.Containers {
		if c := &in.Containers[i]; !goes[c.ID] {
			holds[c.SandboxID] = true
		}
	}
	newest := map[types.UID]*Sandbox{}
	for i := range in.Sandboxes {
		s := &in.Sandboxes[i]
		have := newest[s.UID]
		if have == nil || s.CreatedAt.After(have.CreatedAt) || s.CreatedAt.Equal(have.CreatedAt) && s.ID > have.ID {
			newest[s.UID] = s
		}
	}
	var list []Sandbox
	for i := range in.Sandboxes {
		s := &in.Sandboxes[i]
		if !in.stamped(s.Owner) || s.State != Dead || holds[s.ID] {
			continue
		}
		switch {
		case in.absent(s.UID):
			if in.aged(s.CreatedAt) {
				list = append(list, *s)
			}
		case newest[s.UID] != s, in.Finished[s.UID]:
			list = append(list, *s)
		}
	}
	return list
}

// onHost chooses the remains of a pod on the host. If anything of the pod stays in the runtime,
// everything stays except the log links of removed containers.
func onHost(in Input, out *Removals) {
	goes := map[string]bool{}
	for i := range out.Containers {
		goes[out.Containers[i].ID] = true
	}
	for i := range out.Sandboxes {
		goes[out.Sandboxes[i].ID] = true
	}
	stays := map[types.UID]bool{}  // pods of which something in the runtime stays
	inUse := map[string]bool{}     // IDs of containers that stay
	traces := map[types.UID]bool{} // pods of which something was seen, so the record stays
	for i := range in.Sandboxes {
		s := &in.Sandboxes[i]
		stays[s.UID] = stays[s.UID] || !goes[s.ID]
		traces[s.UID] = true
	}
	for i := range in.Containers {
		c := &in.Containers[i]
		stays[c.UID] = stays[c.UID] || !goes[c.ID]
		inUse[c.ID] = !goes[c.ID]
		traces[c.UID] = true
	}
	garbage := func(uid types.UID) bool {
		return in.Records[uid] && in.absent(uid) && !stays[uid]
	}

	for _, uid := range in.PodDirs {
		traces[uid] = true
		if garbage(uid) {
			out.PodDirs = append(out.PodDirs, uid)
		}
	}
	for _, name := range in.LogDirs {
		uid := LogDirUID(name)
		traces[uid] = true
		if garbage(uid) {
			out.LogDirs = append(out.LogDirs, name)
		}
	}
	for _, l := range in.Links {
		uid := in.linkUID(l)
		traces[uid] = true
		id := LinkContainerID(l.Name)
		// A link goes with its container, also for a known pod. A missing target proves nothing:
		// log rotation moves it away for a moment.
		if id != "" && !inUse[id] && in.Records[uid] && in.SourcesSeen {
			out.Links = append(out.Links, l.Name)
		}
	}
	for _, c := range in.Cgroups {
		traces[c.UID] = true
		if garbage(c.UID) {
			out.Cgroups = append(out.Cgroups, c)
		}
	}
	for uid := range in.Records {
		if in.absent(uid) && !traces[uid] && !in.Lived[uid] {
			out.Records = append(out.Records, uid)
		}
	}
	sort.Slice(out.Records, func(i, j int) bool { return out.Records[i] < out.Records[j] })
}
