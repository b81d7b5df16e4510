package admit

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Every reason for which a kubelet v1.37.1 rejects a pod is either given here, or listed with why
// it never occurs.
func TestEveryReason(t *testing.T) {
	strict, no := v1.SupplementalGroupsPolicyStrict, false
	elsewhere := func(p *v1.Pod) { p.Spec.NodeName = "other" }
	for reason, tc := range map[string]struct {
		pod    *v1.Pod
		others []*v1.Pod
		change func(*Node)
		never  string
	}{
		"AppArmor": {pod: having(asking("p"), func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{AppArmorProfile: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault}}
		}), change: func(n *Node) { n.AppArmor = false }},
		"PodOSSelectorNodeLabelDoesNotMatch": {pod: having(asking("p"), func(p *v1.Pod) { p.Labels = map[string]string{v1.LabelOSStable: "windows"} })},
		"PodOSNotSupported":                  {pod: having(asking("p"), func(p *v1.Pod) { p.Spec.OS = &v1.PodOS{Name: v1.Windows} })},
		"SupplementalGroupsPolicyNotSupported": {pod: having(asking("p"), func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{SupplementalGroupsPolicy: &strict}
		}), change: func(n *Node) { n.StrictGroups = false }},
		"UnexpectedAdmissionError": {pod: having(asking("p", "cpu", "9"), critical)},
		"OutOfcpu":                 {pod: asking("p", "cpu", "9")},
		"OutOfmemory":              {pod: asking("p", "memory", "9Gi")},
		"OutOfephemeral-storage":   {pod: asking("p", "ephemeral-storage", "90Gi")},
		"OutOfpods":                {pod: asking("p"), others: []*v1.Pod{asking("a"), asking("b"), asking("c")}},
		"OutOfexample.com/gpu":     {pod: asking("p", "example.com/gpu", "2")},
		"NodeAffinity":             {pod: having(asking("p"), func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "hdd"} })},
		"NodeName":                 {pod: having(asking("p"), elsewhere)},
		"NodePorts":                {pod: having(asking("p"), port(80, "")), others: []*v1.Pod{having(asking("o"), port(80, ""))}},
		"TaintToleration":          {pod: asking("p"), change: func(n *Node) { n.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoExecute}} }},
		"PodFeatureUnsupported": {pod: having(asking("p"), func(p *v1.Pod) { p.Spec.HostNetwork, p.Spec.HostUsers = true, &no }),
			change: func(n *Node) { n.Features = []string{} }},
		"PodLevelResourcesNotSupported": {pod: having(asking("p"), func(p *v1.Pod) {
			p.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1m")}}
		}), change: func(n *Node) { n.NoPodResources = true }},
		"Evicted":         {pod: asking("p"), change: func(n *Node) { n.Pressure = []v1.NodeConditionType{v1.NodeDiskPressure} }},
		"SysctlForbidden": {pod: having(asking("p"), sysctlOf("kernel.msgmnb"))},

		"InvalidNodeInfo":                     {never: "the node is what this process knows of its machine; the API server's object adds labels and taints, if it is there"},
		"InitContainerRestartPolicyForbidden": {never: "a kubelet has no way to it any more: sidecars are its own"},
		"UnknownReason":                       {never: "each check that fails here says why"},
		"UnexpectedPredicateFailureType":      {never: "there are two kinds of failures, and both are reported"},
		"TopologyAffinityError":               {never: "there is no topology manager: its policy is none"},
		"VolumeAttachmentLimitExceeded":       {never: "volumes that are attached (CSI) are not mounted yet"},
		"NodeShutdown":                        {never: "it is the shutdown's own check, and not of this package"},
	} {
		if tc.never != "" {
			continue
		}
		n := aNode()
		if tc.change != nil {
			tc.change(&n)
		}
		if r := OnNode(tc.pod, tc.others, n).Rejection; r == nil || r.Reason != reason || r.Message == "" {
			t.Errorf("%s: the verdict is %+v", reason, r)
		}
	}
}

// A pod that uses a feature is admitted only if the node declares it.
func TestDeclaredFeatures(t *testing.T) {
	no := false
	users := having(asking("p"), func(p *v1.Pod) { p.Spec.HostNetwork, p.Spec.HostUsers = true, &no })
	options := having(asking("p"), func(p *v1.Pod) {
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", BindMountOptions: []string{"noexec"}}}
	})
	restarts := having(asking("p"), func(p *v1.Pod) {
		p.Spec.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{{Action: v1.ContainerRestartRuleActionRestartAllContainers}}
	})
	const lacks = "Pod requires node features that are not available: "
	for name, tc := range map[string]struct {
		pod      *v1.Pod
		features []string
		message  string
	}{
		"plain":                   {pod: asking("p"), features: []string{}},
		"not decided":             {pod: users},
		"users":                   {pod: users, features: []string{}, message: lacks + "UserNamespacesHostNetworkSupport"},
		"users, declared":         {pod: users, features: []string{"UserNamespacesHostNetworkSupport"}},
		"restarts":                {pod: restarts, features: []string{}, message: lacks + "RestartAllContainersOnContainerExits"},
		"restarts, declared":      {pod: restarts, features: []string{"RestartAllContainersOnContainerExits"}},
		"options":                 {pod: options, features: []string{}, message: lacks + "VolumeBindMountOptions"},
		"a feature no one speaks": {pod: asking("p"), features: []string{"OfTomorrow"}},
	} {
		n := aNode()
		n.Features = tc.features
		r := OnNode(tc.pod, nil, n).Rejection
		switch {
		case tc.message == "" && r != nil, tc.message != "" && (r == nil || r.Reason != ReasonFeature || r.Message != tc.message):
			t.Errorf("%s: the verdict is %+v", name, r)
		}
	}
}

// An update that needs a feature which the node does not declare is found; the pod was admitted before.
func TestDeclaredFeaturesOfAnUpdate(t *testing.T) {
	big := having(asking("p"), func(p *v1.Pod) {
		p.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}}
	})
	init := having(asking("p"), func(p *v1.Pod) { p.Spec.InitContainers = []v1.Container{{Name: "init"}} })
	const lacks = "Pod requires node features that are not available: InPlacePodLevelResourcesVerticalScaling"
	for name, tc := range map[string]struct {
		from, to *v1.Pod
		features []string
		want     string
	}{
		"no change":                              {from: big, to: big.DeepCopy(), features: []string{}},
		"a resize":                               {from: asking("p"), to: big, features: []string{}, want: lacks},
		"a resize, declared":                     {from: asking("p"), to: big, features: []string{"InPlacePodLevelResourcesVerticalScaling"}},
		"a resize, not decided":                  {from: asking("p"), to: big},
		"a static pod that has fewer containers": {from: init, to: asking("p"), features: []string{}},
	} {
		n := aNode()
		n.Features = tc.features
		if got := LackingForUpdate(tc.from, tc.to, n); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
