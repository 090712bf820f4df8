import { defineConfig } from 'vite';

export default defineConfig({
  root: import.meta.dirname,
  base: './',
  publicDir: false,
  logLevel: 'error',
  esbuild: { jsx: 'automatic' },
  define: { 'process.env.NODE_ENV': '"production"', global: 'globalThis' },
  build: {
    emptyOutDir: true,
    chunkSizeWarningLimit: 100000,
    // Scenes expects exports that this runtime lacks and the page does not use.
    rolldownOptions: { shimMissingExports: true, onwarn() {} },
  },
});
