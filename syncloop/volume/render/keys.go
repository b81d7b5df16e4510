package render

import (
	"fmt"
	"io/fs"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func fromConfigMap(name string, items []v1.KeyToPath, defaultMode fs.FileMode, optional bool, s Sources) (Tree, error) {
	answer, ok := s.ConfigMaps[name]
	if !ok {
		return nil, fmt.Errorf("configmap %q was not fetched", name)
	}
	if answer.Err != nil {
		if optional && apierrors.IsNotFound(answer.Err) {
			return Tree{}, nil
		}
		return nil, answer.Err
	}
	object := answer.Object
	data := make(map[string][]byte, len(object.Data)+len(object.BinaryData))
	// The API refuses a key that is in both. Data wins, as in the kubelet for items.
	for k, v := range object.BinaryData {
		data[k] = v
	}
	for k, v := range object.Data {
		data[k] = []byte(v)
	}
	return pick(data, items, defaultMode, optional, "configmap references non-existent config key: %s")
}

func fromSecret(name string, items []v1.KeyToPath, defaultMode fs.FileMode, optional bool, s Sources) (Tree, error) {
	answer, ok := s.Secrets[name]
	if !ok {
		return nil, fmt.Errorf("secret %q was not fetched", name)
	}
	if answer.Err != nil {
		if optional && apierrors.IsNotFound(answer.Err) {
			return Tree{}, nil
		}
		return nil, answer.Err
	}
	return pick(answer.Object.Data, items, defaultMode, optional, "references non-existent secret key: %s")
}

// pick takes all keys, or those in items, at their paths.
func pick(data map[string][]byte, items []v1.KeyToPath, defaultMode fs.FileMode, optional bool, missing string) (Tree, error) {
	tree := make(Tree, len(data))
	if len(items) == 0 {
		for key, content := range data {
			tree[key] = File{Data: content, Mode: defaultMode, UID: -1, GID: -1}
		}
		return tree, nil
	}
	for i := range items {
		item := &items[i]
		content, ok := data[item.Key]
		if !ok {
			if optional {
				continue
			}
			return nil, fmt.Errorf(missing, item.Key)
		}
		m := defaultMode
		if item.Mode != nil {
			m = mode(item.Mode)
		}
		tree[item.Path] = File{Data: content, Mode: m, UID: -1, GID: -1}
	}
	return tree, nil
}
