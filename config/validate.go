package config

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	tracingapi "k8s.io/component-base/tracing/api/v1"
)

// validate lists all mistakes of a configuration that has its defaults.
func validate(c *BowlineConfiguration) field.ErrorList {
	errs := oneOf(field.NewPath("apiVersion"), c.APIVersion, APIVersion)
	errs = append(errs, oneOf(field.NewPath("kind"), c.Kind, Kind)...)
	errs = append(errs, validateTaints(field.NewPath("registerWithTaints"), c.RegisterWithTaints)...)
	errs = append(errs, validateLogging(field.NewPath("logging"), c.Logging)...)
	errs = append(errs, tracingapi.ValidateTracingConfiguration(c.Tracing, nil, field.NewPath("tracing"))...)
	errs = append(errs, validateSettings(nil, &c.NodeSettings)...)
	hosts := field.NewPath("hosts")
	if len(c.Hosts) == 0 && c.HostObjects == nil {
		errs = append(errs, field.Required(hosts, "no host is configured; add one, or set hostObjects"))
	}
	for i := range c.Hosts {
		p := hosts.Index(i)
		errs = append(errs, validateHost(p, &c.Hosts[i])...)
		errs = addUnlessAbove(errs, p, validateSettings(p, &c.Hosts[i].NodeSettings))
	}
	if c.HostObjects != nil {
		p := field.NewPath("hostObjects")
		errs = addUnlessAbove(errs, p.Child("template"), validateHostObjects(p, c.HostObjects))
		if c.HostObjects.Replicas != nil && len(c.Hosts) > 0 {
			errs = append(errs, field.Forbidden(hosts, "with hostObjects.replicas every replica would manage the hosts of the file; create Host objects for them instead"))
		}
	}
	return append(errs, validateDistinct(hosts, c.Hosts)...)
}

// addUnlessAbove adds errors from below p. An error in an inherited setting is listed only where
// the setting was written.
func addUnlessAbove(errs field.ErrorList, p *field.Path, more field.ErrorList) field.ErrorList {
	for _, e := range more {
		above := strings.TrimPrefix(e.Field, p.String()+".")
		if !slices.ContainsFunc(errs, func(o *field.Error) bool { return o.Field == above && o.Detail == e.Detail }) {
			errs = append(errs, e)
		}
	}
	return errs
}

func validateHost(p *field.Path, h *Host) field.ErrorList {
	errs := validateEndpoint(p.Child("endpoint"), h.Endpoint)
	if h.ImageServiceEndpoint != "" {
		errs = append(errs, machinePath(p.Child("imageServiceEndpoint"), h.ImageSocketPath())...)
	}
	errs = append(errs, validateSSH(p, h)...)
	if h.NodeName != "" {
		errs = append(errs, messages(p.Child("nodeName"), h.NodeName, validation.IsDNS1123Subdomain(h.NodeName))...)
	}
	if scheme, rest, ok := strings.Cut(h.ProviderID, "://"); h.ProviderID != "" && (!ok || scheme == "" || rest == "" || strings.ContainsAny(h.ProviderID, " \t\n{}")) {
		errs = append(errs, field.Invalid(p.Child("providerID"), h.ProviderID, "it is such as bowline://box-1"))
	}
	if strings.ContainsAny(h.Name, "\n\t ") {
		errs = append(errs, field.Invalid(p.Child("name"), h.Name, "a name has no blanks"))
	}
	if h.Kubeconfig == "" && h.Identity.Mode == IdentityKubeconfig {
		errs = append(errs, field.Required(p.Child("kubeconfig"), "set a kubeconfig with the node's credential here or at the top"))
	}
	errs = append(errs, validateLabels(p.Child("labels"), h.Labels)...)
	errs = append(errs, validateTaints(p.Child("taints"), h.Taints)...)
	errs = append(errs, validateNodeIP(p.Child("nodeIP"), h.NodeIP)...)
	errs = append(errs, machinePath(p.Child("rootDirectory"), h.RootDirectory)...)
	if h.RootDirectory == "/" {
		errs = append(errs, field.Invalid(p.Child("rootDirectory"), h.RootDirectory, "a directory of its own"))
	}
	s := p.Child("server")
	if _, err := netip.ParseAddr(h.Server.Address); err != nil {
		errs = append(errs, field.Invalid(s.Child("address"), h.Server.Address, "not an IP address"))
	}
	errs = append(errs, oneOf(p.Child("kubeletExposure"), h.KubeletExposure, ExposureProcess, ExposureHost)...)
	if h.Exposed() {
		if ip, err := netip.ParseAddr(h.Server.Address); err == nil && !ip.IsUnspecified() {
			errs = append(errs, field.Forbidden(s.Child("address"), "with kubeletExposure host, nodeIP sets the address"))
		}
		if h.Server.PublishedAddress != "" {
			errs = append(errs, field.Forbidden(s.Child("publishedAddress"), "with kubeletExposure host, nodeIP sets the address"))
		}
	}
	if h.Server.Port != 0 || !h.Remote() {
		for _, msg := range validation.IsValidPortNum(int(h.Server.Port)) {
			errs = append(errs, field.Invalid(s.Child("port"), h.Server.Port, msg))
		}
	}
	switch {
	case h.Server.TLSCertFile != "" && h.Server.TLSPrivateKeyFile == "":
		errs = append(errs, field.Required(s.Child("tlsPrivateKeyFile"), "tlsCertFile is set"))
	case h.Server.TLSCertFile == "" && h.Server.TLSPrivateKeyFile != "":
		errs = append(errs, field.Required(s.Child("tlsCertFile"), "tlsPrivateKeyFile is set"))
	case h.Server.TLSCertFile != "" && *h.ServerTLSBootstrap:
		errs = append(errs, field.Forbidden(s.Child("tlsCertFile"), "serverTLSBootstrap is true: the cluster signs the certificate"))
	}
	return errs
}

func validateDurations(at func(...string) *field.Path, n *NodeSettings) (errs field.ErrorList) {
	for _, d := range []struct {
		path  *field.Path
		value metav1.Duration
	}{
		{at("syncFrequency"), n.SyncFrequency},
		{at("nodeStatusReportFrequency"), n.NodeStatusReportFrequency},
		{at("fileCheckFrequency"), n.FileCheckFrequency},
		{at("httpCheckFrequency"), n.HTTPCheckFrequency},
		{at("streamingConnectionIdleTimeout"), n.StreamingConnectionIdleTimeout},
		{at("authentication", "webhook", "cacheTTL"), n.Authentication.Webhook.CacheTTL},
		{at("authorization", "webhook", "cacheAuthorizedTTL"), n.Authorization.Webhook.CacheAuthorizedTTL},
		{at("authorization", "webhook", "cacheUnauthorizedTTL"), n.Authorization.Webhook.CacheUnauthorizedTTL},
	} {
		if d.value.Duration < time.Second {
			errs = append(errs, field.Invalid(d.path, d.value.Duration.String(), "at least 1s"))
		}
	}
	if d := n.CrashLoopBackOff.MaxContainerRestartPeriod.Duration; d != 0 && (d < time.Second || d > 5*time.Minute) { // 0: its feature gate is off
		errs = append(errs, field.Invalid(at("crashLoopBackOff", "maxContainerRestartPeriod"), d.String(), "between 1s and 5m"))
	}
	if d := n.CPUCFSQuotaPeriod.Duration; d < time.Millisecond || d > time.Second {
		errs = append(errs, field.Invalid(at("cpuCFSQuotaPeriod"), d.String(), "between 1ms and 1s"))
	}
	if d := n.VolumeStatsAggPeriod.Duration; d >= 0 && d < time.Second {
		errs = append(errs, field.Invalid(at("volumeStatsAggPeriod"), d.String(), "at least 1s, or negative"))
	}
	if d := n.NodeStatusUpdateFrequency.Duration; d != 0 && d < time.Second { // 0: each host has its default
		errs = append(errs, field.Invalid(at("nodeStatusUpdateFrequency"), d.String(), "at least 1s"))
	}
	return errs
}

func validateSettings(p *field.Path, n *NodeSettings) field.ErrorList {
	at := func(names ...string) *field.Path {
		if p == nil {
			return field.NewPath(names[0], names[1:]...)
		}
		return p.Child(names[0], names[1:]...)
	}
	errs := machinePath(at("podLogsDirectory"), n.PodLogsDirectory)
	errs = append(errs, atLeast(at("maxPods"), int64(n.MaxPods), 1)...)
	errs = append(errs, atLeast(at("podsPerCore"), int64(n.PodsPerCore), 0)...)
	errs = append(errs, validateUserNamespaces(at("userNamespaces"), n)...)
	errs = append(errs, validateRates(at, n)...)
	errs = append(errs, validateTLS(at, n)...)
	errs = append(errs, validateFeatures(at, n)...)
	if *n.PodPidsLimit < -1 || *n.PodPidsLimit == 0 {
		errs = append(errs, field.Invalid(at("podPidsLimit"), *n.PodPidsLimit, "a positive number, or -1 for no limit"))
	}
	if n.CgroupDriver != "" {
		errs = append(errs, oneOf(at("cgroupDriver"), n.CgroupDriver, "cgroupfs", "systemd")...)
	}
	errs = append(errs, machinePath(at("cgroupRoot"), n.CgroupRoot)...)
	errs = append(errs, validateSysctls(at("allowedUnsafeSysctls"), n.AllowedUnsafeSysctls)...)
	errs = append(errs, validatePressure(at, n)...)
	errs = append(errs, validateShutdown(at, n)...)
	for i, s := range n.ClusterDNS {
		if _, err := netip.ParseAddr(s); err != nil {
			errs = append(errs, field.Invalid(at("clusterDNS").Index(i), s, "not an IP address"))
		}
	}
	errs = append(errs, messages(at("clusterDomain"), n.ClusterDomain, validation.IsDNS1123Subdomain(n.ClusterDomain))...)
	if *n.ResolvConf != "" {
		errs = append(errs, machinePath(at("resolvConf"), *n.ResolvConf)...)
	}
	errs = append(errs, validateDurations(at, n)...)
	errs = append(errs, atLeast(at("nodeStatusMaxImages"), int64(*n.NodeStatusMaxImages), -1)...)
	errs = append(errs, atLeast(at("nodeLeaseDurationSeconds"), int64(n.NodeLeaseDurationSeconds), 4)...)
	if m := n.MaxParallelImagePulls; m != nil {
		errs = append(errs, atLeast(at("maxParallelImagePulls"), int64(*m), 1)...)
		if *m > 1 && *n.SerializeImagePulls {
			errs = append(errs, field.Invalid(at("maxParallelImagePulls"), *m, "serializeImagePulls is true: one pull at a time"))
		}
	}
	errs = append(errs, validateLogs(at, n)...)
	for i, v := range n.EnforceNodeAllocatable {
		errs = append(errs, oneOf(at("enforceNodeAllocatable").Index(i), v, EnforcePods, EnforceNone)...)
	}
	if len(n.EnforceNodeAllocatable) > 1 {
		errs = append(errs, field.Invalid(at("enforceNodeAllocatable"), n.EnforceNodeAllocatable, "one of pods and none"))
	}
	errs = append(errs, validateStaticPods(at, n)...)
	errs = append(errs, oneOf(at("configMapAndSecretChangeDetectionStrategy"), n.ConfigMapAndSecretChangeDetectionStrategy,
		StrategyWatch, StrategyCache, StrategyGet)...)
	errs = append(errs, validateCredentialProviders(at, n)...)
	errs = append(errs, validateVerification(at, n)...)
	errs = append(errs, validateIdentity(at("identity"), n.Identity)...)
	errs = append(errs, validateReserved(at("systemReserved"), n.SystemReserved)...)
	errs = append(errs, validateReserved(at("kubeReserved"), n.KubeReserved)...)
	if strings.ContainsRune(n.Authentication.X509.ClientCAFile, 0) {
		errs = append(errs, field.Invalid(at("authentication", "x509", "clientCAFile"), n.Authentication.X509.ClientCAFile, "a path has no zero byte"))
	}
	return append(errs, oneOf(at("authorization", "mode"), n.Authorization.Mode, AuthorizationWebhook, AuthorizationAlwaysAllow)...)
}

// validateRates checks the limits on requests. A burst of 0 would let nothing through.
func validateRates(at func(...string) *field.Path, n *NodeSettings) field.ErrorList {
	errs := atLeast(at("kubeAPIQPS"), int64(*n.KubeAPIQPS), -1)
	if *n.KubeAPIQPS == 0 {
		errs = append(errs, field.Invalid(at("kubeAPIQPS"), 0, "at least 1, or -1 for no limit"))
	}
	errs = append(errs, atLeast(at("kubeAPIBurst"), int64(*n.KubeAPIBurst), 1)...)
	errs = append(errs, atLeast(at("eventRecordQPS"), int64(*n.EventRecordQPS), 0)...)
	errs = append(errs, atLeast(at("eventBurst"), int64(*n.EventBurst), 1)...)
	errs = append(errs, atLeast(at("registryPullQPS"), int64(*n.RegistryPullQPS), 0)...)
	return append(errs, atLeast(at("registryBurst"), int64(*n.RegistryBurst), 1)...)
}

// validateLogs has the kubelet's bounds.
func validateLogs(at func(...string) *field.Path, n *NodeSettings) field.ErrorList {
	errs := atLeast(at("containerLogMaxFiles"), int64(*n.ContainerLogMaxFiles), 2)
	errs = append(errs, atLeast(at("containerLogMaxWorkers"), int64(*n.ContainerLogMaxWorkers), 1)...)
	if _, err := n.LogMaxSize(); err != nil {
		errs = append(errs, field.Invalid(at("containerLogMaxSize"), n.ContainerLogMaxSize, err.Error()))
	}
	if d := n.ContainerLogMonitorInterval.Duration; d < 3*time.Second {
		errs = append(errs, field.Invalid(at("containerLogMonitorInterval"), d.String(), "at least 3s"))
	}
	return errs
}

// LogMaxSize is ContainerLogMaxSize in bytes.
func (n *NodeSettings) LogMaxSize() (int64, error) {
	q, err := resource.ParseQuantity(n.ContainerLogMaxSize)
	if err != nil {
		return 0, errors.New("want a quantity, such as 10Mi")
	}
	size, whole := q.AsInt64()
	if !whole || size == 0 {
		return 0, errors.New("want a number of bytes above zero")
	}
	return size, nil
}

func validateIdentity(p *field.Path, i Identity) field.ErrorList {
	errs := oneOf(p.Child("mode"), i.Mode, IdentityKubeconfig, IdentityImpersonate, IdentityBootstrap, IdentityCSR)
	at := p.Child("bootstrapKubeconfig")
	switch {
	case i.Mode == IdentityBootstrap && i.BootstrapKubeconfig == "":
		errs = append(errs, field.Required(at, "set the kubeconfig of an account that may request the node's first certificate"))
	case i.Mode != IdentityBootstrap && i.BootstrapKubeconfig != "":
		errs = append(errs, field.Forbidden(at, "the mode is "+i.Mode+", not "+IdentityBootstrap))
	}
	if strings.ContainsRune(i.CertificateDirectory, 0) {
		errs = append(errs, field.Invalid(p.Child("certificateDirectory"), i.CertificateDirectory, "a path has no zero byte"))
	}
	return errs
}

// validateDistinct: two hosts that are the same machine or node would conflict.
func validateDistinct(p *field.Path, hosts []Host) field.ErrorList {
	var errs field.ErrorList
	seen := map[Claim]bool{}
	for i := range hosts {
		for _, c := range append(hosts[i].Claims(), Claim{"name", hosts[i].Name}) {
			if seen[c] {
				at := p.Index(i)
				for n := range strings.SplitSeq(c.Field, ".") {
					at = at.Child(n)
				}
				errs = append(errs, field.Duplicate(at, c.Value))
			}
			seen[c] = true
		}
	}
	slices.SortFunc(errs, func(a, b *field.Error) int { return strings.Compare(a.Field, b.Field) })
	return errs
}

// Claim is a field of Host, for example "server.port", with a value that only one host of a process
// may have.
type Claim struct{ Field, Value string }

// Claims of a host that has its defaults, except its name.
func (h *Host) Claims() []Claim {
	machine := h.Endpoint
	for _, j := range Way(h.SSH.Jumps) { // the same address behind another jump is another machine
		machine += " by " + j.String()
	}
	claims := []Claim{{"endpoint", machine}}
	// A remote host has its own hostname and root directory.
	if !h.Remote() || h.NodeName != "" {
		claims = append(claims, Claim{"nodeName", h.NodeName})
	}
	if !h.Remote() {
		claims = append(claims, Claim{"rootDirectory", h.RootDirectory})
	}
	if h.Server.Port != 0 && !h.Exposed() { // if exposed it is a port of the machine
		claims = append(claims, Claim{"server.port", fmt.Sprintf("%s:%d", h.Server.Address, h.Server.Port)})
	}
	return claims
}

func validateNodeIP(p *field.Path, value string) field.ErrorList {
	if value == "" {
		return nil
	}
	var errs field.ErrorList
	var ips []netip.Addr
	for part := range strings.SplitSeq(value, ",") {
		ip, err := netip.ParseAddr(part)
		switch {
		case err != nil || ip.Zone() != "":
			errs = append(errs, field.Invalid(p, value, fmt.Sprintf("%q is not an IP address", part)))
		case ip.IsMulticast() || ip.IsUnspecified():
			errs = append(errs, field.Invalid(p, value, fmt.Sprintf("%s is not a unicast address", part)))
		}
		ips = append(ips, ip)
	}
	if len(errs) == 0 && (len(ips) > 2 || len(ips) == 2 && ips[0].Is4() == ips[1].Is4()) {
		errs = append(errs, field.Invalid(p, value, "one address, or one of IPv4 and one of IPv6"))
	}
	return errs
}

func validateReserved(p *field.Path, reserved map[string]string) field.ErrorList {
	var errs field.ErrorList
	for _, k := range sortedKeys(reserved) {
		errs = append(errs, oneOf(p.Key(k), k, "cpu", "memory", "ephemeral-storage")...)
		if q, err := resource.ParseQuantity(reserved[k]); err != nil || q.Sign() < 0 {
			errs = append(errs, field.Invalid(p.Key(k), reserved[k], "not a positive quantity such as 100m or 1Gi"))
		}
	}
	return errs
}

// machinePath: a path on a machine must be absolute.
func machinePath(p *field.Path, value string) field.ErrorList {
	if !path.IsAbs(value) || path.Clean(value) != value || strings.ContainsRune(value, 0) {
		return field.ErrorList{field.Invalid(p, value, "not an absolute path, or not in its simplest form")}
	}
	return nil
}

func atLeast(p *field.Path, value, least int64) field.ErrorList {
	if value < least {
		return field.ErrorList{field.Invalid(p, value, fmt.Sprintf("at least %d", least))}
	}
	return nil
}

func oneOf(p *field.Path, value string, known ...string) field.ErrorList {
	switch {
	case value == "":
		return field.ErrorList{field.Required(p, "write "+strings.Join(known, " or "))}
	case !slices.Contains(known, value):
		return field.ErrorList{field.NotSupported(p, value, known)}
	}
	return nil
}

// messages turns messages about one value into errors.
func messages(p *field.Path, value string, messages []string) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range messages {
		errs = append(errs, field.Invalid(p, value, msg))
	}
	return errs
}
