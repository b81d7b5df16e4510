package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
)

// identify gives the pod the name, the UID and the annotations of a static pod. The UID is derived
// from the manifest before defaulting: a newer version of Bowline with one more default must not
// restart every static pod.
func identify(p *v1.Pod, from Origin) {
	m := &p.ObjectMeta
	// The manifest may have been copied from an API server: fields that a server sets are dropped.
	p.ObjectMeta = metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID, Labels: m.Labels, Annotations: m.Annotations}
	p.Status = v1.PodStatus{}
	for _, key := range []string{pod.AnnotationManifest, pod.AnnotationSource, pod.AnnotationSeen, pod.AnnotationConfigHash, pod.AnnotationMirror} {
		delete(p.Annotations, key)
	}
	if p.UID == "" {
		p.UID = contentUID(p, from)
	}
	p.Name += "-" + strings.ToLower(from.NodeName)
	if p.Namespace == "" {
		p.Namespace = metav1.NamespaceDefault
	}
	p.Spec.NodeName = from.NodeName
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[pod.AnnotationSource] = from.Source
	p.Annotations[pod.AnnotationConfigHash] = string(p.UID)
	if from.Source == pod.SourceFile {
		p.Annotations[pod.AnnotationManifest] = from.Path
		tolerate(p)
	}
	p.Status.Phase = v1.PodPending
}

func contentUID(p *v1.Pod, from Origin) types.UID {
	content, err := json.Marshal(p)
	if err != nil { // a pod that was decoded can be encoded
		content = fmt.Appendf(nil, "%#v", p)
	}
	sum := sha256.New()
	sum.Write(content)
	if from.Source == pod.SourceFile {
		fmt.Fprintf(sum, "host:%sfile:%s", from.NodeName, from.Path)
	} else {
		fmt.Fprintf(sum, "url:%s", from.Path)
	}
	return types.UID(hex.EncodeToString(sum.Sum(nil)[:16]))
}

// tolerate makes the pod tolerate every NoExecute taint, so that a node in trouble does not evict
// it.
func tolerate(p *v1.Pod) {
	wanted := v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}
	for _, t := range p.Spec.Tolerations {
		if t.MatchToleration(&wanted) {
			return
		}
	}
	p.Spec.Tolerations = append(p.Spec.Tolerations, wanted)
}
