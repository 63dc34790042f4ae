package config

import (
	"fmt"
	"net"
	"strconv"

	"github.com/gobridge/gobridge"
)

// File is a config file: the bridge and the daemon around it.
type File struct {
	Spec      gobridge.Spec `yaml:",inline"`
	Log       Log           `yaml:"log" doc:"what the daemon writes to standard error"`
	HTTP      HTTP          `yaml:"http" doc:"the one listener for probes, metrics, monitor and admin"`
	Telemetry Telemetry     `yaml:"telemetry" doc:"export of metrics and traces"`

	// Redacted tells that the file holds secrets as config show prints them: it
	// can be checked but not run.
	Redacted bool `yaml:"-"`
}

// Log configures the log.
type Log struct {
	Level  string `yaml:"level" doc:"the least level written" default:"info" enum:"debug,info,warn,error"`
	Format string `yaml:"format" doc:"lines for people or for machines" default:"text" enum:"text,json"`
}

// HTTP configures the listener.
type HTTP struct {
	Listen    string     `yaml:"listen" doc:"host:port; an empty string turns it off" default:"127.0.0.1:8080"`
	AdminKeys []AdminKey `yaml:"admin_keys" doc:"who may use the admin API; without a key it answers on loopback only"`
	TLS       HTTPTLS    `yaml:"tls" doc:"certificate of the listener; plain HTTP without one"`
}

// AdminKey lets one holder use the admin API.
type AdminKey struct {
	Name string          `yaml:"name" doc:"name of the holder, for the log" required:"true"`
	Key  gobridge.Secret `yaml:"key" doc:"the key, at least 16 characters" required:"true"`
}

// HTTPTLS names the certificate of the listener.
type HTTPTLS struct {
	CertFile string `yaml:"cert_file" doc:"PEM file of the certificate chain"`
	KeyFile  string `yaml:"key_file" doc:"PEM file of the private key"`
}

// Telemetry configures the export over OTLP.
type Telemetry struct {
	OTLPEndpoint string `yaml:"otlp_endpoint" doc:"OTLP/HTTP endpoint; not available in this version"`
}

// minAdminKey is the shortest admin key, in characters.
const minAdminKey = 16

// newFile returns a file with the daemon's defaults; those of the bridge are
// completed by Spec.Check.
func newFile() *File {
	f := &File{}
	gobridge.SetDefaults(&f.Log)
	gobridge.SetDefaults(&f.HTTP)
	return f
}

// later names what the config has keys for and this version does not offer.
var later = map[string]string{
	"processors":          "processors",
	"routes[].processors": "processors",
	"http_ingest":         "http_ingest",
}

// check reports every fault of the daemon's own blocks.
func (f *File) check(report func(gobridge.Problem)) {
	fault := func(path, what, hint string) {
		report(gobridge.Problem{Path: path, What: what, Hint: hint})
	}
	loopback := true
	if f.HTTP.Listen != "" {
		host, port, err := net.SplitHostPort(f.HTTP.Listen)
		if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || n > 65535 {
			fault("http.listen", "not an address to listen on", "write host:port, such as 127.0.0.1:8080")
		} else {
			ip := net.ParseIP(host)
			loopback = host == "localhost" || ip != nil && ip.IsLoopback()
		}
	}
	names := map[string]bool{}
	for i, k := range f.HTTP.AdminKeys {
		path := fmt.Sprintf("http.admin_keys[%d]", i)
		switch {
		case k.Name == "":
			fault(path+".name", "missing", "name the holder of the key")
		case names[k.Name]:
			fault(path+".name", fmt.Sprintf("second key named %q", k.Name), "give every key a name of its own")
		}
		names[k.Name] = true
		if n := len([]rune(k.Key.Reveal())); n < minAdminKey && k.Key.Reveal() != gobridge.Redacted {
			fault(path+".key", fmt.Sprintf("shorter than %d characters", minAdminKey), "make one with: openssl rand -hex 16")
		}
	}
	tls := f.HTTP.TLS
	switch {
	case tls.CertFile != "" && tls.KeyFile == "":
		fault("http.tls.key_file", "missing, cert_file is set", "name the private key of the certificate too")
	case tls.CertFile == "" && tls.KeyFile != "":
		fault("http.tls.cert_file", "missing, key_file is set", "name the certificate of the private key too")
	case tls.CertFile == "" && !loopback && len(f.HTTP.AdminKeys) > 0:
		report(gobridge.Problem{
			Path: "http.admin_keys", What: "the keys cross the network in clear text", Warning: true,
			Hint: "set http.tls, or put a proxy with TLS in front",
		})
	}
	if f.Telemetry.OTLPEndpoint != "" {
		what, hint, _ := gobridge.NotAvailable("telemetry.otlp_endpoint")
		fault("telemetry.otlp_endpoint", what, hint)
	}
}
