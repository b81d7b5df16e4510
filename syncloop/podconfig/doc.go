// Package podconfig merges the pods of every source into one stream of changes for the sync loop, as a
// kubelet's PodConfig does. It identifies pods by UID, never by name alone: a pod that is deleted
// and recreated under its name is a REMOVE and an ADD, even if the source showed one update.
//
//	source ─ Set, Drop, Seen ─► PodConfig ─ Updates ─► syncLoop
//
// The api source (api.go) reads the lister that virtual-kubelet shares. The file and http sources
// (file.go, http.go) replace all their static pods at once with Replace (static.go).
package podconfig
