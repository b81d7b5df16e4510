package credentialprovider

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kubeletconfig "k8s.io/kubelet/config/v1"
	credentialapi "k8s.io/kubelet/pkg/apis/credentialprovider"
)

// Program is one provider and the path of its executable.
type Program struct {
	Config kubeletconfig.CredentialProvider
	Path   string
}

const kind = "CredentialProviderConfig"

// configCodecs reads all versions that the kubelet reads. The older ones have the fields of v1
// except tokenAttributes.
var configCodecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	for _, version := range []string{"v1", "v1beta1", "v1alpha1"} {
		scheme.AddKnownTypeWithName(schema.GroupVersionKind{Group: kubeletconfig.GroupName, Version: version, Kind: kind}, &kubeletconfig.CredentialProviderConfig{})
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict)
}()

// Load reads a CredentialProviderConfig: a file, or all *.json, *.yaml and *.yml of a directory in
// the order of their names. The error lists every mistake in the configuration, and every program
// that is missing in binDir. tokens says whether providers may get tokens of service accounts.
func Load(path, binDir string, tokens bool) ([]Program, error) {
	if info, err := os.Stat(binDir); err != nil {
		return nil, fmt.Errorf("imageCredentialProviderBinDir: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("imageCredentialProviderBinDir: %s is not a directory", binDir)
	}
	all, err := read(path)
	if err != nil {
		return nil, fmt.Errorf("imageCredentialProviderConfig: %w", err)
	}
	errs := validate(all, tokens)
	programs := make([]Program, 0, len(all))
	for i, c := range all {
		if plainName(c.Name) != "" {
			continue // reported by validate; do not follow such a path
		}
		file, err := exec.LookPath(filepath.Join(binDir, c.Name))
		if err != nil {
			errs = append(errs, field.Invalid(field.NewPath("providers").Index(i).Child("name"), c.Name,
				fmt.Sprintf("there is no such program in %s: %v", binDir, unwrapped(err))))
			continue
		}
		programs = append(programs, Program{Config: c, Path: file})
	}
	if err := errs.ToAggregate(); err != nil {
		return nil, fmt.Errorf("imageCredentialProviderConfig %s: %w", path, err)
	}
	return programs, nil
}

// unwrapped strips the repeated path from an error of exec.
func unwrapped(err error) error {
	var e *exec.Error
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}

func read(path string) ([]kubeletconfig.CredentialProvider, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	files := []string{path}
	if info.IsDir() {
		if files, err = configFiles(path); err != nil {
			return nil, err
		}
	}
	var all []kubeletconfig.CredentialProvider
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		c, err := parse(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, c.Providers...)
	}
	return all, nil
}

func configFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && slices.Contains([]string{".json", ".yaml", ".yml"}, ext) {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	if len(files) == 0 {
		return nil, &fs.PathError{Op: "read", Path: dir, Err: errors.New("there is no *.json, *.yaml or *.yml in it")}
	}
	return files, nil
}

// parse reads one document strictly.
func parse(data []byte) (*kubeletconfig.CredentialProviderConfig, error) {
	object, got, err := configCodecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("not a %s of %s: %w", kind, kubeletconfig.SchemeGroupVersion, err)
	}
	c, ok := object.(*kubeletconfig.CredentialProviderConfig)
	if !ok {
		return nil, fmt.Errorf("the kind is %s; it has to be %s", got.Kind, kind)
	}
	for _, one := range c.Providers {
		if one.TokenAttributes != nil && got.Version != kubeletconfig.SchemeGroupVersion.Version {
			return nil, fmt.Errorf("provider %q has tokenAttributes, which %s has and %s has not", one.Name, kubeletconfig.SchemeGroupVersion, got.GroupVersion())
		}
	}
	return c, nil
}

// versions of the protocol that programs may use.
var versions = []string{credentialapi.GroupName + "/v1", credentialapi.GroupName + "/v1alpha1", credentialapi.GroupName + "/v1beta1"}

func validate(all []kubeletconfig.CredentialProvider, tokens bool) field.ErrorList {
	var errs field.ErrorList
	if len(all) == 0 {
		errs = append(errs, field.Required(field.NewPath("providers"), "there is no provider in it"))
	}
	seen := map[string]bool{}
	for i, c := range all {
		at := field.NewPath("providers").Index(i)
		if why := plainName(c.Name); why != "" {
			errs = append(errs, field.Invalid(at.Child("name"), c.Name, why))
		}
		if seen[c.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), c.Name))
		}
		seen[c.Name] = true
		switch {
		case c.APIVersion == "":
			errs = append(errs, field.Required(at.Child("apiVersion"), "the version of the protocol that the program speaks, such as "+versions[0]))
		case !slices.Contains(versions, c.APIVersion):
			errs = append(errs, field.NotSupported(at.Child("apiVersion"), c.APIVersion, versions))
		}
		if len(c.MatchImages) == 0 {
			errs = append(errs, field.Required(at.Child("matchImages"), "the images that the provider is asked for"))
		}
		for j, glob := range c.MatchImages {
			if _, err := url.Parse("https://" + glob); err != nil {
				errs = append(errs, field.Invalid(at.Child("matchImages").Index(j), glob, "not such as registry.example:5000/team or *.registry.example"))
			}
		}
		switch d := c.DefaultCacheDuration; {
		case d == nil:
			errs = append(errs, field.Required(at.Child("defaultCacheDuration"), "how long an answer is kept that does not say so itself; 0s for not at all"))
		case d.Duration < 0:
			errs = append(errs, field.Invalid(at.Child("defaultCacheDuration"), d.Duration.String(), "at least 0s"))
		}
		if c.TokenAttributes != nil {
			errs = append(errs, validateTokens(at, &c)...)
			if !tokens {
				errs = append(errs, field.Forbidden(at.Child("tokenAttributes"), "the feature gate KubeletServiceAccountTokenForCredentialProviders is off"))
			}
		}
	}
	return errs
}

// plainName returns why a program's name is invalid, or "" if it is valid.
func plainName(name string) string {
	switch {
	case name == "":
		return "the name of a program in imageCredentialProviderBinDir"
	case strings.ContainsAny(name, "/ "), name == ".", name == "..":
		return "a program's name has no slash and no blank, and is neither . nor .."
	}
	return ""
}

func validateTokens(at *field.Path, c *kubeletconfig.CredentialProvider) field.ErrorList {
	var errs field.ErrorList
	t := c.TokenAttributes
	p := at.Child("tokenAttributes")
	if t.ServiceAccountTokenAudience == "" {
		errs = append(errs, field.Required(p.Child("serviceAccountTokenAudience"), "whom the token is for"))
	}
	if t.RequireServiceAccount == nil {
		errs = append(errs, field.Required(p.Child("requireServiceAccount"), "whether the provider is asked for pods that have no service account"))
	}
	if c.APIVersion != versions[0] {
		errs = append(errs, field.Forbidden(p, "only "+versions[0]+" has tokens"))
	}
	required, optional := p.Child("requiredServiceAccountAnnotationKeys"), p.Child("optionalServiceAccountAnnotationKeys")
	if t.RequireServiceAccount != nil && !*t.RequireServiceAccount && len(t.RequiredServiceAccountAnnotationKeys) > 0 {
		errs = append(errs, field.Forbidden(required, "requireServiceAccount is false: there may be none that has them"))
	}
	errs = append(errs, validateKeys(required, t.RequiredServiceAccountAnnotationKeys)...)
	errs = append(errs, validateKeys(optional, t.OptionalServiceAccountAnnotationKeys)...)
	for i, k := range t.OptionalServiceAccountAnnotationKeys {
		if slices.Contains(t.RequiredServiceAccountAnnotationKeys, k) {
			errs = append(errs, field.Invalid(optional.Index(i), k, "it is required already"))
		}
	}
	types := []kubeletconfig.ServiceAccountTokenCacheType{kubeletconfig.ServiceAccountServiceAccountTokenCacheType, kubeletconfig.TokenServiceAccountTokenCacheType}
	switch {
	case t.CacheType == "":
		errs = append(errs, field.Required(p.Child("cacheType"), "by what answers are kept: ServiceAccount or Token"))
	case !slices.Contains(types, t.CacheType):
		errs = append(errs, field.NotSupported(p.Child("cacheType"), t.CacheType, types))
	}
	return errs
}

// validateKeys checks the keys in lower case, as for any annotation; keys that differ in case are
// distinct.
func validateKeys(p *field.Path, keys []string) field.ErrorList {
	var errs field.ErrorList
	for i, k := range keys {
		for _, why := range validation.IsQualifiedName(strings.ToLower(k)) {
			errs = append(errs, field.Invalid(p.Index(i), k, why))
		}
		if slices.Index(keys, k) < i {
			errs = append(errs, field.Duplicate(p.Index(i), k))
		}
	}
	return errs
}
