package node

// declaredFeatures are the feature gates that this node declares in its status, sorted. The API
// server lets a pod use such a feature only on a node that declares it.
var declaredFeatures = []string{
	"ExtendWebSocketsToKubelet",
	"InPlacePodLevelResourcesVerticalScaling",
	"InPlacePodVerticalScalingInitContainers",
	"RestartAllContainersOnContainerExits",
}
