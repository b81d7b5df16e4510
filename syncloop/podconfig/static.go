package podconfig

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
)

// Names of the sources of static pods.
const (
	SourceFile = pod.SourceFile
	SourceHTTP = pod.SourceHTTP
)

// Replace sets the pods of a source of static pods, and marks the source as read. A pod that it
// already had keeps its status and the time at which it was first seen.
func (c *PodConfig) Replace(source string, pods []*v1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sources[source]
	have := make(map[types.UID]bool, len(pods))
	for _, p := range pods {
		have[p.UID] = true
	}
	for _, p := range byName(maps.Values(s.pods)) {
		if !have[p.UID] {
			delete(s.pods, p.UID)
			c.push(Change{Op: Remove, Pod: p, Source: source})
		}
	}
	for _, p := range pods {
		p = p.DeepCopy()
		if old := s.pods[p.UID]; old != nil {
			p.Status = old.Status
			p.Annotations[pod.AnnotationSeen] = old.Annotations[pod.AnnotationSeen]
		} else if mirror := c.mirrors[nameOf(p)]; mirror != nil && !c.forgotten[mirror.UID] {
			p.Status = statusFromMirror(p, mirror)
		}
		c.set(source, p)
	}
	s.seen = true
	c.PokeMirrored()
}

// Withhold names the manifests whose pod the file source does not know: they cannot be used, and it
// has not read a usable version of them since it started. A pod that runs from one of them is not
// an orphan.
func (c *PodConfig) Withhold(manifests map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.withheld = manifests
}

// Withheld says whether a pod with these annotations may come from such a manifest.
func (c *PodConfig) Withheld(annotations map[string]string) bool {
	if annotations[pod.AnnotationSource] != SourceFile {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.withheld[annotations[pod.AnnotationManifest]]
}

// setMirror records a mirror pod. The static pod that it stands for takes over its status.
func (c *PodConfig) setMirror(mirror *v1.Pod) {
	if old := c.mirrors[nameOf(mirror)]; old != nil && old.UID != mirror.UID {
		delete(c.forgotten, old.UID)
	}
	c.mirrors[nameOf(mirror)] = mirror
	c.PokeMirrored()
	if c.forgotten[mirror.UID] {
		return
	}
	uid := types.UID(mirror.Annotations[pod.AnnotationMirror])
	for source, s := range c.sources {
		p := s.pods[uid]
		if source == SourceAPI || p == nil || nameOf(p) != nameOf(mirror) {
			continue
		}
		next := *p // shallow: the source's object is shared
		next.Status = statusFromMirror(p, mirror)
		s.pods[uid] = &next
		c.push(Change{Op: Reconcile, Pod: &next, Source: source, Mirror: mirror})
	}
}

// statusFromMirror is the status of a static pod according to the API server. A terminal phase in the
// mirror pod is ignored, because another writer may have set it (the pod garbage collector does when
// a node is out of service): only the runtime shows whether a static pod has ended.
func statusFromMirror(p, mirror *v1.Pod) v1.PodStatus {
	of := types.UID(mirror.Annotations[pod.AnnotationMirror])
	if of != p.UID || mirror.DeletionTimestamp != nil || pod.Terminal(mirror.Status.Phase) || pod.Terminal(p.Status.Phase) {
		return p.Status
	}
	return mirror.Status
}

func (c *PodConfig) dropMirror(of fullName) {
	if m := c.mirrors[of]; m != nil {
		delete(c.mirrors, of)
		delete(c.forgotten, m.UID)
		c.PokeMirrored()
	}
}

// PokeMirrored wakes the reader of Mirrored.
func (c *PodConfig) PokeMirrored() { c.mirrored.Send() }

// RetainTerminalStatus keeps the final status of a static pod whose worker ends, because no object of
// the API server may remember it. It returns false if no source has the pod.
func (c *PodConfig) RetainTerminalStatus(uid types.UID, status v1.PodStatus) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for source, s := range c.sources {
		if p := s.pods[uid]; p != nil && source != SourceAPI {
			next := *p
			next.Status = status
			s.pods[uid] = &next
			return true
		}
	}
	return false
}

// ForgetMirror records that a life of a static pod that was removed is over. Its mirror pod belongs to
// that life only: if the pod is added again, it gets a new mirror pod, as a terminal status cannot be
// undone.
func (c *PodConfig) ForgetMirror(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for source, s := range c.sources {
		if p := s.pods[uid]; p != nil && source != SourceAPI {
			next := *p
			next.Status = v1.PodStatus{}
			s.pods[uid] = &next
		}
	}
	for _, m := range c.mirrors {
		if types.UID(m.Annotations[pod.AnnotationMirror]) == uid {
			c.forgotten[m.UID] = true
			c.PokeMirrored()
		}
	}
}

// MirrorForgotten says whether the mirror pod of this UID belongs to a life that is over.
func (c *PodConfig) MirrorForgotten(mirror types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.forgotten[mirror]
}

// ClearTerminalStatus forgets the final status of a static pod that its source still has, and sends
// the pod as an ADD again. It returns false if no source has the pod, or if it has not ended.
func (c *PodConfig) ClearTerminalStatus(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for source, s := range c.sources {
		p := s.pods[uid]
		if p == nil || source == SourceAPI {
			continue
		}
		if !pod.Terminal(p.Status.Phase) {
			return false
		}
		next := *p // shallow: the source's object is shared
		next.Status = v1.PodStatus{}
		s.pods[uid] = &next
		c.push(Change{Op: Add, Pod: &next, Source: source})
		return true
	}
	return false
}

// Mirrored receives when a static pod or a mirror pod has appeared, gone, changed or ended.
func (c *PodConfig) Mirrored() <-chan struct{} { return c.mirrored }

// StaticPods returns the static pods and the mirror pods, each sorted by namespace and name.
func (c *PodConfig) StaticPods() (static, mirrors []*v1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for source, s := range c.sources {
		if source != SourceAPI {
			for _, p := range s.pods {
				static = append(static, p)
			}
		}
	}
	return byName(slices.Values(static)), byName(maps.Values(c.mirrors))
}

// Object is the API server's object for a pod: the pod itself, or the mirror pod of a static pod.
// ok is false while a static pod has none, or while the mirror pod is being deleted.
func (c *PodConfig) Object(of pod.Ref) (object pod.Ref, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	mirror := c.mirrors[fullName{of.Namespace, of.Name}]
	if mirror != nil && types.UID(mirror.Annotations[pod.AnnotationMirror]) == of.UID && !c.forgotten[mirror.UID] {
		return refOf(mirror), mirror.DeletionTimestamp == nil
	}
	for source, s := range c.sources {
		if source != SourceAPI && s.pods[of.UID] != nil {
			return pod.Ref{}, false
		}
	}
	return of, true
}

// Resolve turns the UID of a mirror pod into the UID of its static pod. Any other UID is returned
// as it is.
func (c *PodConfig) Resolve(uid types.UID) types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.mirrors {
		if m.UID == uid {
			return types.UID(m.Annotations[pod.AnnotationMirror])
		}
	}
	return uid
}

// claimless returns the API server's pod with its config.source annotation set to the api source,
// if it claims another one. Anyone who may create pods can set that annotation, and Bowline acts on
// it.
func claimless(p *v1.Pod) *v1.Pod {
	if source, claims := p.Annotations[pod.AnnotationSource]; !claims || source == SourceAPI {
		return p
	}
	out := *p
	out.Annotations = maps.Clone(p.Annotations)
	out.Annotations[pod.AnnotationSource] = SourceAPI
	return &out
}

func byName(pods func(func(*v1.Pod) bool)) []*v1.Pod {
	return slices.SortedFunc(pods, func(a, b *v1.Pod) int {
		if n := strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name); n != 0 {
			return n
		}
		return strings.Compare(string(a.UID), string(b.UID))
	})
}
