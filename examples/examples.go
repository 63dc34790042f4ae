// Package examples holds configs to start from. gobridge init writes them.
package examples

import (
	"embed"
	"io/fs"
	"strings"
)

//go:embed *.yaml
var files embed.FS

// Example is one config.
type Example struct {
	// Name is the file name without its extension: mqtt-to-mqtt.
	Name string
	// Summary is the first line of the config's comment.
	Summary string
	Config  []byte
}

// All returns the examples by name; the first is the one to begin with.
func All() ([]Example, error) {
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return nil, err
	}
	var all []Example
	for _, name := range names {
		data, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		first, _, _ := strings.Cut(string(data), "\n")
		e := Example{Name: strings.TrimSuffix(name, ".yaml"), Summary: strings.TrimPrefix(first, "# "), Config: data}
		if e.Name == Default {
			all = append([]Example{e}, all...)
		} else {
			all = append(all, e)
		}
	}
	return all, nil
}

// Default names the example to begin with.
const Default = "mqtt-to-mqtt"
