package config

import (
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/bowline-k8s/bowline/pod"
)

func validateStaticPods(at func(...string) *field.Path, n *NodeSettings) field.ErrorList {
	var errs field.ErrorList
	if n.StaticPodPath != "" {
		errs = append(errs, machinePath(at("staticPodPath"), n.StaticPodPath)...)
	}
	if n.StaticPodURL != "" {
		u, err := url.Parse(n.StaticPodURL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			errs = append(errs, field.Invalid(at("staticPodURL"), pod.ShownURL(n.StaticPodURL), "not such as https://config.example/pods.yaml"))
		}
	}
	for _, name := range sortedKeys(n.StaticPodURLHeader) {
		errs = append(errs, messages(at("staticPodURLHeader"), name, validation.IsHTTPHeaderName(name))...)
		for _, v := range n.StaticPodURLHeader[name] {
			if strings.ContainsAny(v, "\r\n\x00") {
				errs = append(errs, field.Invalid(at("staticPodURLHeader").Key(name), "(not shown)", "a header is one line"))
			}
		}
	}
	return errs
}
