package config

import (
	"crypto/tls"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-base/cli/flag"
)

// http2Suites are those of which HTTP/2 over TLS 1.2 needs one (RFC 9113, section 9.2.2). Go serves
// no HTTP/2 without one of them.
var http2Suites = []string{"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"}

func validateTLS(at func(...string) *field.Path, n *NodeSettings) field.ErrorList {
	errs := oneOf(at("tlsMinVersion"), n.TLSMinVersion, "VersionTLS12", "VersionTLS13")
	p := at("tlsCipherSuites")
	var usable []string
	for _, s := range tls.CipherSuites() {
		if slices.Contains(s.SupportedVersions, tls.VersionTLS12) {
			usable = append(usable, s.Name)
		}
	}
	for i, s := range n.TLSCipherSuites {
		errs = append(errs, oneOf(p.Index(i), s, usable...)...)
	}
	if len(n.TLSCipherSuites) > 0 && n.TLSMinVersion == "VersionTLS13" {
		errs = append(errs, field.Forbidden(p, "tlsMinVersion is VersionTLS13, whose suites cannot be chosen"))
	} else if len(n.TLSCipherSuites) > 0 && !slices.ContainsFunc(n.TLSCipherSuites, func(s string) bool { return slices.Contains(http2Suites, s) }) {
		errs = append(errs, field.Invalid(p, n.TLSCipherSuites, fmt.Sprintf("HTTP/2 needs one of %s", strings.Join(http2Suites, " and "))))
	}
	curves := at("tlsCurvePreferences")
	for i, id := range n.TLSCurvePreferences {
		if _, err := flag.TLSCurvePreferences([]int32{id}); err != nil {
			errs = append(errs, field.Invalid(curves.Index(i), id, "no key exchange that Go has, such as 29 (X25519)"))
		} else if slices.Contains(n.TLSCurvePreferences[:i], id) {
			errs = append(errs, field.Duplicate(curves.Index(i), id))
		}
	}
	return errs
}
