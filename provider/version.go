package provider

import (
	"runtime/debug"
	"strings"

	utilversion "k8s.io/apimachinery/pkg/util/version"
)

// fallbackVersion is used if the build has no module information (tests).
const fallbackVersion = "v1.37.1"

// builtVersion is the Kubernetes release of the kubelet that Bowline replaces: that of the API
// types in this build (k8s.io/api v0.37.1 is Kubernetes v1.37.1).
func builtVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return fallbackVersion
	}
	for _, d := range info.Deps {
		if d.Path == "k8s.io/api" && strings.HasPrefix(d.Version, "v0.") {
			return "v1." + strings.TrimPrefix(d.Version, "v0.")
		}
	}
	return fallbackVersion
}

// ReportedVersion is the kubelet version to report to a server of gitVersion: our own, but never
// newer than the server's, because Kubernetes does not support that skew. If gitVersion cannot be
// parsed, it is our own.
func ReportedVersion(gitVersion string) string {
	own := builtVersion()
	server, err := utilversion.ParseSemantic(gitVersion)
	if err != nil {
		return own
	}
	ours, err := utilversion.ParseSemantic(own)
	if err != nil || !server.LessThan(ours) {
		return own
	}
	v := "v" + server.String()
	if i := strings.IndexByte(v, '+'); i > 0 {
		v = v[:i]
	}
	return v
}
