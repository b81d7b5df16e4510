package config

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

// Replace records that a source of static pods has exactly these, and that it has been
// seen. Of a pod that it had already, what was found out since stays.
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
		} else if mirror := c.mirrors[nameOf(p)]; mirror != nil && !c.buried[mirror.UID] {
			p.Status = told(p, mirror)
		}
		c.set(source, p)
	}
	s.seen = true
	c.PokeMirrored()
}

// Withhold says by which manifests there may be a pod that the file source cannot tell:
// they cannot be used, and it has not seen them when they could. A pod that runs by one
// is no orphan.
func (c *PodConfig) Withhold(manifests map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.withheld = manifests
}

// Withheld says whether this may be the pod of such a manifest, by its annotations.
func (c *PodConfig) Withheld(annotations map[string]string) bool {
	if annotations[pod.AnnotationSource] != SourceFile {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.withheld[annotations[pod.AnnotationManifest]]
}

// setMirror takes in a mirror pod: the static pod that it stands for has its status.
func (c *PodConfig) setMirror(mirror *v1.Pod) {
	if old := c.mirrors[nameOf(mirror)]; old != nil && old.UID != mirror.UID {
		delete(c.buried, old.UID)
	}
	c.mirrors[nameOf(mirror)] = mirror
	c.PokeMirrored()
	if c.buried[mirror.UID] {
		return
	}
	uid := types.UID(mirror.Annotations[pod.AnnotationMirror])
	for source, s := range c.sources {
		p := s.pods[uid]
		if source == SourceAPI || p == nil || nameOf(p) != nameOf(mirror) {
			continue
		}
		next := *p // shallow: the source's object is shared
		next.Status = told(p, mirror)
		s.pods[uid] = &next
		c.push(Change{Op: Reconcile, Pod: &next, Source: source, Mirror: mirror})
	}
}

// told is the status that the API server holds of a static pod. Someone else's word that
// it has ended ends no static pod (the pod garbage collector gives its word where a node
// is out of service): whether it has is seen in the runtime.
func told(p, mirror *v1.Pod) v1.PodStatus {
	ended := func(phase v1.PodPhase) bool { return phase == v1.PodSucceeded || phase == v1.PodFailed }
	of := types.UID(mirror.Annotations[pod.AnnotationMirror])
	if of != p.UID || mirror.DeletionTimestamp != nil || ended(mirror.Status.Phase) || ended(p.Status.Phase) {
		return p.Status
	}
	return mirror.Status
}

func (c *PodConfig) dropMirror(of fullName) {
	if m := c.mirrors[of]; m != nil {
		delete(c.mirrors, of)
		delete(c.buried, m.UID)
		c.PokeMirrored()
	}
}

// PokeMirrored has whoever waits for Mirrored look again.
func (c *PodConfig) PokeMirrored() {
	select {
	case c.mirrored <- struct{}{}:
	default:
	}
}

// Settle keeps the last status of a static pod that has ended, and whose worker ends: no
// object of the API server remembers it. false: no source has the pod.
func (c *PodConfig) Settle(uid types.UID, status v1.PodStatus) bool {
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

// Bury tells that a life of a static pod that was taken away is over. Its mirror pod tells
// of that life and no other: if the pod is there again, it gets another mirror pod, as no
// status comes back from its end.
func (c *PodConfig) Bury(uid types.UID) {
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
			c.buried[m.UID] = true
			c.PokeMirrored()
		}
	}
}

// Buried says whether the mirror pod of this UID is of a life that is over.
func (c *PodConfig) Buried(mirror types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buried[mirror]
}

// Unsettle forgets the end of a static pod that its source still has, and tells of it as
// of one that has just come. false: no source has the pod, or it has not ended.
func (c *PodConfig) Unsettle(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for source, s := range c.sources {
		p := s.pods[uid]
		if p == nil || source == SourceAPI {
			continue
		}
		if p.Status.Phase != v1.PodSucceeded && p.Status.Phase != v1.PodFailed {
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

// Mirrored is poked when a static pod or a mirror pod has come, gone, changed or ended.
func (c *PodConfig) Mirrored() <-chan struct{} { return c.mirrored }

// StaticPods and their mirror pods, each by namespace and name.
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

// Object is the pod of the API server that a pod is told by: itself, or of a static pod
// its mirror pod; ok is false while there is none.
func (c *PodConfig) Object(of pod.Ref) (object pod.Ref, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	mirror := c.mirrors[fullName{of.Namespace, of.Name}]
	if mirror != nil && types.UID(mirror.Annotations[pod.AnnotationMirror]) == of.UID && !c.buried[mirror.UID] {
		return refOf(mirror), mirror.DeletionTimestamp == nil
	}
	for source, s := range c.sources {
		if source != SourceAPI && s.pods[of.UID] != nil {
			return pod.Ref{}, false
		}
	}
	return of, true
}

// Resolve turns the UID of a mirror pod into that of the static pod it stands for, and
// leaves every other as it is.
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

// claimless is a pod of the API server that does not claim to come from elsewhere: the
// annotation is free to everybody who may create pods, and decides what is done.
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
