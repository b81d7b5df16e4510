// Package features has the feature gates of Kubernetes that have a meaning for a node of Bowline, with the
// names, stages and defaults that they have in a kubelet. Gates are values: each node has its own.
package features

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"
)

// Release is the Kubernetes release that the stages and defaults are of.
const Release = "1.37"

// Gates that can be set. docs/running.md says what each does.
const (
	ClusterTrustBundleProjection                     featuregate.Feature = "ClusterTrustBundleProjection"
	ComponentFlagz                                   featuregate.Feature = "ComponentFlagz"
	ComponentStatusz                                 featuregate.Feature = "ComponentStatusz"
	ContainerCheckpoint                              featuregate.Feature = "ContainerCheckpoint"
	CPUCFSQuotaPeriod                                featuregate.Feature = "CPUCFSQuotaPeriod"
	ContainerRestartRules                            featuregate.Feature = "ContainerRestartRules"
	ContainerStopSignals                             featuregate.Feature = "ContainerStopSignals"
	EnvFiles                                         featuregate.Feature = "EnvFiles"
	ExtendWebSocketsToKubelet                        featuregate.Feature = "ExtendWebSocketsToKubelet"
	GracefulNodeShutdown                             featuregate.Feature = "GracefulNodeShutdown"
	GracefulNodeShutdownBasedOnPodPriority           featuregate.Feature = "GracefulNodeShutdownBasedOnPodPriority"
	InPlacePodLevelResourcesVerticalScaling          featuregate.Feature = "InPlacePodLevelResourcesVerticalScaling"
	KubeletAllocatedPodsEndpoint                     featuregate.Feature = "KubeletAllocatedPodsEndpoint"
	KubeletCrashLoopBackOffMax                       featuregate.Feature = "KubeletCrashLoopBackOffMax"
	KubeletEnsureSecretPulledImages                  featuregate.Feature = "KubeletEnsureSecretPulledImages"
	KubeletServiceAccountTokenForCredentialProviders featuregate.Feature = "KubeletServiceAccountTokenForCredentialProviders"
	PodCertificateRequest                            featuregate.Feature = "PodCertificateRequest"
	PodLevelResources                                featuregate.Feature = "PodLevelResources"
	PodLogsQuerySplitStreams                         featuregate.Feature = "PodLogsQuerySplitStreams"
	ReduceDefaultCrashLoopBackOffDecay               featuregate.Feature = "ReduceDefaultCrashLoopBackOffDecay"
	ReloadKubeletClientCAFile                        featuregate.Feature = "ReloadKubeletClientCAFile"
	ReloadKubeletServerCertificateFile               featuregate.Feature = "ReloadKubeletServerCertificateFile"
	RestartAllContainersOnContainerExits             featuregate.Feature = "RestartAllContainersOnContainerExits"
	RotateKubeletServerCertificate                   featuregate.Feature = "RotateKubeletServerCertificate"
)

// InPlacePodVerticalScalingInitContainers cannot be set any more, but a node still declares it.
const InPlacePodVerticalScalingInitContainers featuregate.Feature = "InPlacePodVerticalScalingInitContainers"

// known are all gates, as pkg/features/kube_features.go and component-base/zpages/features of that release
// have them. Of the locked ones, those of features that a node of Bowline has. A gate that is off by default
// is off here too, even if the API server has its own gate of that name: a feature needs both, as with a kubelet.
var known = map[featuregate.Feature]featuregate.FeatureSpec{
	ClusterTrustBundleProjection:                     {Default: true},
	ComponentFlagz:                                   {Default: true, PreRelease: featuregate.Beta},
	ComponentStatusz:                                 {Default: true, PreRelease: featuregate.Beta},
	ContainerCheckpoint:                              {Default: true, PreRelease: featuregate.Beta},
	CPUCFSQuotaPeriod:                                {Default: true},
	ContainerRestartRules:                            {Default: true, PreRelease: featuregate.Beta},
	ContainerStopSignals:                             {PreRelease: featuregate.Alpha},
	EnvFiles:                                         {Default: true, PreRelease: featuregate.Beta},
	ExtendWebSocketsToKubelet:                        {Default: true, PreRelease: featuregate.Beta},
	GracefulNodeShutdown:                             {Default: true, PreRelease: featuregate.Beta},
	GracefulNodeShutdownBasedOnPodPriority:           {Default: true, PreRelease: featuregate.Beta},
	InPlacePodLevelResourcesVerticalScaling:          {Default: true, PreRelease: featuregate.Beta},
	KubeletAllocatedPodsEndpoint:                     {PreRelease: featuregate.Alpha},
	KubeletCrashLoopBackOffMax:                       {Default: true, PreRelease: featuregate.Beta},
	KubeletEnsureSecretPulledImages:                  {Default: true, PreRelease: featuregate.Beta},
	KubeletServiceAccountTokenForCredentialProviders: {Default: true, PreRelease: featuregate.Beta},
	PodCertificateRequest:                            {Default: true},
	PodLevelResources:                                {Default: true, PreRelease: featuregate.Beta},
	PodLogsQuerySplitStreams:                         {PreRelease: featuregate.Alpha},
	ReduceDefaultCrashLoopBackOffDecay:               {PreRelease: featuregate.Alpha},
	ReloadKubeletClientCAFile:                        {Default: true, PreRelease: featuregate.Beta},
	ReloadKubeletServerCertificateFile:               {Default: true, PreRelease: featuregate.Beta},
	RestartAllContainersOnContainerExits:             {Default: true, PreRelease: featuregate.Beta},
	RotateKubeletServerCertificate:                   {Default: true, PreRelease: featuregate.Beta},

	"HostnameOverride":                      locked,
	"ImageMaximumGCAge":                     locked,
	"ImageVolume":                           locked,
	"InPlacePodVerticalScaling":             locked,
	InPlacePodVerticalScalingInitContainers: locked,
	"KubeletCgroupDriverFromCRI":            locked,
	"KubeletFineGrainedAuthz":               locked,
	"KubeletPSI":                            locked,
	"KubeletTracing":                        locked,
	"NodeDeclaredFeatures":                  locked,
	"NodeLogQuery":                          locked,
	"PodObservedGenerationTracking":         locked,
	"PodReadyToStartContainersCondition":    locked,
	"ProcMountType":                         locked,
	"RecursiveReadOnlyMounts":               locked,
	"SupplementalGroupsPolicy":              locked,
	"UserNamespacesSupport":                 locked,
}

// locked is the specification of a feature that is generally available and cannot be disabled.
var locked = featuregate.FeatureSpec{Default: true, LockToDefault: true}

// needs are the gates without which another one may not be on.
var needs = map[featuregate.Feature]featuregate.Feature{
	GracefulNodeShutdownBasedOnPodPriority:  GracefulNodeShutdown,
	InPlacePodLevelResourcesVerticalScaling: PodLevelResources,
	RestartAllContainersOnContainerExits:    ContainerRestartRules,
}

// Gates are the feature gates of one node. They do not change. The zero Gates have the defaults.
type Gates struct{ gate featuregate.FeatureGate }

// Fault says why a gate cannot be set so.
type Fault struct {
	Gate string
	Why  string
}

// New returns the gates with the values in set, by name. AllAlpha and AllBeta set the gates of that stage
// that are not in set; all others have their defaults. A value with a fault does not count.
func New(set map[string]bool) (Gates, []Fault) {
	gate := featuregate.NewFeatureGate()
	utilruntime.Must(gate.Add(known))
	specs, sound := gate.GetAll(), map[string]bool{}
	var faults []Fault
	for _, name := range slices.Sorted(maps.Keys(set)) {
		switch spec, ok := specs[featuregate.Feature(name)]; {
		case !ok:
			faults = append(faults, Fault{name, "no such gate has an effect here; those that have are " + strings.Join(Names(), ", ")})
		case spec.LockToDefault && spec.Default != set[name]:
			faults = append(faults, Fault{name, fmt.Sprintf("Kubernetes %s has locked this gate to %t: remove it; those that can be set are %s",
				Release, spec.Default, strings.Join(Names(), ", "))})
		default:
			sound[name] = set[name]
		}
	}
	// Without a logger: it would warn about each gate that is generally available.
	utilruntime.Must(gate.SetFromMapWithLogger(klog.Logger{}, sound))
	for _, f := range slices.Sorted(maps.Keys(needs)) {
		if need := needs[f]; gate.Enabled(f) && !gate.Enabled(need) {
			faults = append(faults, Fault{string(f), fmt.Sprintf("this gate needs %s, which is false: set this one to false as well", need)})
		}
	}
	return Gates{gate}, faults
}

// Enabled reports whether a gate of this package is on.
func (g Gates) Enabled(f featuregate.Feature) bool {
	if g.gate == nil {
		return known[f].Default
	}
	return g.gate.Enabled(f)
}

// State is a gate as a kubelet shows it in kubernetes_feature_enabled.
type State struct {
	Name    string
	Stage   string // ALPHA, BETA, or empty: generally available
	Enabled bool
}

// All returns every gate, also AllAlpha, AllBeta and those that cannot be set, by name.
func (g Gates) All() []State {
	if g.gate == nil {
		g, _ = New(nil)
	}
	var all []State
	for f, spec := range g.gate.DeepCopy().GetAll() {
		all = append(all, State{string(f), string(spec.PreRelease), g.gate.Enabled(f)})
	}
	slices.SortFunc(all, func(a, b State) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Names lists the gates that can be set.
func Names() []string {
	names := []string{"AllAlpha", "AllBeta"}
	for f, spec := range known {
		if !spec.LockToDefault {
			names = append(names, string(f))
		}
	}
	slices.Sort(names)
	return names
}

// Declared returns the gates that a node declares in its status, sorted. The API server lets a pod use such
// a feature only on a node that declares it.
func (g Gates) Declared() []string {
	var names []string
	for _, f := range declared {
		if g.Enabled(f) {
			names = append(names, string(f))
		}
	}
	return names
}

// declared are the gates of this package that the nodedeclaredfeatures library of that release knows.
var declared = []featuregate.Feature{
	ExtendWebSocketsToKubelet,
	InPlacePodLevelResourcesVerticalScaling,
	InPlacePodVerticalScalingInitContainers,
	RestartAllContainersOnContainerExits,
}
