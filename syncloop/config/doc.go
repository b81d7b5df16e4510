// Package config is the loop's PodConfig: it merges the pods of every source
// into one stream of changes. Pods are told apart by UID, never by name alone:
// a pod deleted and made again under its name is a REMOVE and an ADD, even
// where the source showed one update.
//
//	source ─ Set, Drop, Seen ─► PodConfig ─ Updates ─► syncLoop
//
// The api source reads the lister that virtual-kubelet shares (api.go); the file
// and http sources set their pods by the same three calls.
package config
