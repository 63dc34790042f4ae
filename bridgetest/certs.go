package bridgetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// KeyPair is a certificate and its key as PEM, in memory and on disk.
type KeyPair struct {
	CertFile, KeyFile string
	CertPEM, KeyPEM   []byte
}

// Certs is a certificate authority with one server and one client certificate.
type Certs struct {
	CAFile string
	CAPEM  []byte
	Server KeyPair // for localhost, 127.0.0.1 and ::1
	Client KeyPair // common name "client"

	t   testing.TB
	dir string
	ca  *x509.Certificate
	key *ecdsa.PrivateKey
}

// CertConfig describes a leaf certificate for [Certs.Issue].
type CertConfig struct {
	Name     string    // common name and file name
	Hosts    []string  // DNS names and IP addresses of a server; none makes a client certificate
	NotAfter time.Time // defaults to an hour from now; a past time makes an expired certificate
}

// NewCerts creates an authority in a temporary directory. It ends the test on an
// error.
func NewCerts(t testing.TB) *Certs {
	t.Helper()
	c := &Certs{t: t, dir: t.TempDir()}
	var err error
	if c.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatalf("make the key of the test CA: %v", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: "bridgetest CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &c.key.PublicKey, c.key)
	if err != nil {
		t.Fatalf("sign the test CA: %v", err)
	}
	if c.ca, err = x509.ParseCertificate(der); err != nil {
		t.Fatalf("parse the test CA: %v", err)
	}
	c.CAFile, c.CAPEM = c.write("ca.crt", "CERTIFICATE", der)
	c.Server = c.Issue(CertConfig{Name: "server", Hosts: []string{"localhost", "127.0.0.1", "::1"}})
	c.Client = c.Issue(CertConfig{Name: "client"})
	return c
}

// Issue signs one more certificate. It ends the test on an error.
func (c *Certs) Issue(cfg CertConfig) KeyPair {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatalf("make the key of %s: %v", cfg.Name, err)
	}
	if cfg.NotAfter.IsZero() {
		cfg.NotAfter = time.Now().Add(time.Hour)
	}
	leaf := &x509.Certificate{
		SerialNumber: serial(c.t), Subject: pkix.Name{CommonName: cfg.Name},
		NotBefore: cfg.NotAfter.Add(-2 * time.Hour), NotAfter: cfg.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, host := range cfg.Hosts {
		leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		if ip := net.ParseIP(host); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, c.ca, &key.PublicKey, c.key)
	if err != nil {
		c.t.Fatalf("sign %s: %v", cfg.Name, err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		c.t.Fatalf("encode the key of %s: %v", cfg.Name, err)
	}
	var pair KeyPair
	pair.CertFile, pair.CertPEM = c.write(cfg.Name+".crt", "CERTIFICATE", der)
	pair.KeyFile, pair.KeyPEM = c.write(cfg.Name+".key", "EC PRIVATE KEY", keyDER)
	return pair
}

// ClientTLS returns a configuration that trusts the authority and presents the
// given certificates, none for a client that has no certificate.
func (c *Certs) ClientTLS(present ...KeyPair) *tls.Config {
	c.t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(c.ca)
	cfg := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	for _, p := range present {
		cfg.Certificates = append(cfg.Certificates, c.load(p))
	}
	cfg.ServerName = "localhost"
	return cfg
}

// ServerTLS returns a configuration for a listener that presents the server
// certificate and, with requireClient, accepts only clients of the authority.
func (c *Certs) ServerTLS(requireClient bool) *tls.Config {
	c.t.Helper()
	cfg := &tls.Config{Certificates: []tls.Certificate{c.load(c.Server)}, MinVersion: tls.VersionTLS12}
	if requireClient {
		cfg.ClientCAs = x509.NewCertPool()
		cfg.ClientCAs.AddCert(c.ca)
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return cfg
}

func (c *Certs) load(p KeyPair) tls.Certificate {
	c.t.Helper()
	cert, err := tls.X509KeyPair(p.CertPEM, p.KeyPEM)
	if err != nil {
		c.t.Fatalf("load %s: %v", p.CertFile, err)
	}
	return cert
}

func (c *Certs) write(name, kind string, der []byte) (path string, text []byte) {
	c.t.Helper()
	path = filepath.Join(c.dir, name)
	text = pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(path, text, 0o600); err != nil {
		c.t.Fatalf("write %s: %v", path, err)
	}
	return path, text
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		t.Fatalf("make a serial number: %v", err)
	}
	return n
}
