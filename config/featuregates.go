package config

import (
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-base/featuregate"

	"github.com/bowline-k8s/bowline/features"
)

// validateFeatures checks the gates, and that no setting of a feature is set whose gate is off.
func validateFeatures(at func(...string) *field.Path, n *NodeSettings) (errs field.ErrorList) {
	p := at("featureGates")
	gates, faults := features.New(n.FeatureGates)
	for _, f := range faults {
		value := any(field.OmitValueType{})
		if v, ok := n.FeatureGates[f.Gate]; ok {
			value = v
		}
		errs = append(errs, field.Invalid(p.Key(f.Gate), value, f.Why))
	}
	for _, f := range []struct {
		name string
		set  bool
		gate featuregate.Feature
	}{
		{"shutdownGracePeriod", n.ShutdownGracePeriod.Duration != 0, features.GracefulNodeShutdown},
		{"shutdownGracePeriodCriticalPods", n.ShutdownGracePeriodCriticalPods.Duration != 0, features.GracefulNodeShutdown},
		{"shutdownGracePeriodByPodPriority", len(n.ShutdownGracePeriodByPodPriority) > 0, features.GracefulNodeShutdownBasedOnPodPriority},
		{"serverTLSBootstrap", *n.ServerTLSBootstrap, features.RotateKubeletServerCertificate},
		{"cpuCFSQuotaPeriod", n.CPUCFSQuotaPeriod.Duration != 100*time.Millisecond, features.CPUCFSQuotaPeriod},
		{"crashLoopBackOff", n.CrashLoopBackOff.MaxContainerRestartPeriod.Duration != 0, features.KubeletCrashLoopBackOffMax},
		{"imagePullCredentialsVerificationPolicy", n.ImagePullCredentialsVerificationPolicy != "", features.KubeletEnsureSecretPulledImages},
		{"preloadedImagesVerificationAllowlist", len(n.PreloadedImagesVerificationAllowlist) > 0, features.KubeletEnsureSecretPulledImages},
	} {
		if f.set && !gates.Enabled(f.gate) {
			errs = append(errs, field.Forbidden(at(f.name), "the feature gate "+string(f.gate)+" is off"))
		}
	}
	return errs
}
